#include "apps/commands/bench_data_command.h"

#include <fmt/ostream.h>

#include <iostream>
#include <memory>

#include "apps/commands/command_line.h"
#include "apps/config/experiment.h"
#include "apps/data/training_data.h"
#include "core/metrics/step_line.h"
#include "core/stopwatch.h"
#include "core/text/counted.h"

namespace ottava {

using fmt::print;

int run_bench_data_command(const BenchDataCommand& command, std::ostream& out) {
  const Config config = load_config(command.file, command.overrides);
  Experiment e = resolve_experiment(config, load_tokenizer(config), 1);
  e.keeps_data_index = false;
  out << notes_text(e.config);
  RankGroups alone = solo_rank_groups();
  data::MixedLoader loader = open_training_data(e, alone);
  const int64_t batch = e.global_batch, samples = command.steps * batch, row = e.shape.sequence;
  std::vector<int32_t> inputs(batch * row), targets(inputs.size()), starts(inputs.size());
  const double reading = seconds_of([&] {
    loader.start(0);
    for (int64_t first = 0; first < samples; first += batch)
      loader.read(first, batch, {inputs.data(), targets.data(), starts.data()});
  });
  print(out, "data: {} of {} from {} in {:.3f} s: {} tokens/s\n", counted(samples, "sequence"),
        counted(row, "token"), counted(std::ssize(loader.sources()), "source"), reading,
        rate_text(samples * row / reading));
  if (loader.sources().size() == 1) return 0;
  volatile int64_t place = 0;  // so that the work is done
  const double finding = seconds_of([&] {
    for (int64_t s = 0; s < samples; ++s) place = loader.mixture().at(s).index;
  });
  print(out, "mixture: {:.0f} ns to find a sequence's source and place, {:.4f}% of reading it\n",
        finding / samples * 1e9, 100 * finding / reading);
  return 0;
}

void add_bench_data_command(Command& bench) {
  auto o = std::make_shared<BenchDataCommand>();
  bench
      .experiment("data",
                  "measure how many tokens per second the training data is read at, and what a mixture costs",
                  *o)
      .option("--steps", o->steps, "number of steps whose data is read")
      .within(1)
      .run([o] { return run_bench_data_command(*o, std::cout); });
}

}  // namespace ottava
