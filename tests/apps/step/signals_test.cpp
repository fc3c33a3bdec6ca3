#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <random>
#include <thread>

#include "core/io/file.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/comm/tcp.h"
#include "tests/apps/step/small_job.h"
#include "tests/support/catch.h"
#include "tests/support/launched.h"

// Runs that are stopped by a signal at a random moment, from the first line of main to the middle of
// training, each going on where the one before ended. OTTAVA_SIGNAL_ROUNDS=100 build/tests/apps_signals_test
// for a hundred of each.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

constexpr int kStopSignals[] = {SIGTERM, SIGUSR1, SIGINT, SIGHUP};

enum class Target { process, group, everyone };

int rounds() {
  const char* asked = std::getenv("OTTAVA_SIGNAL_ROUNDS");
  return asked ? std::atoi(asked) : 10;
}

class StoppedRuns {
 public:
  /// `launcher`: what stands between the program and its command.
  explicit StoppedRuns(const std::string& launcher) : launcher_(launcher) {}

  void stop_one(int signal, Target target) {
    const int64_t before = job_.newest_checkpoint();
    const Outcome o = run_command("exec " + command(100'000), [&](int group) {
      wait_for_a_moment();
      send(group, signal, target);
    });
    INFO(strsignal(signal) << " to "
                           << (target == Target::process ? "the process"
                               : target == Target::group ? "the group"
                                                         : "everyone")
                           << " after step " << before << "\n"
                           << o.output);
    CHECK(processes_with(job_.file()).empty());
    const int64_t newest = job_.newest_checkpoint();
    if (o.exit_code == 128 + signal && o.output.empty()) {  // before main's first line
      ++early_;
      CHECK(newest == before);
      return;
    }
    CHECK(o.exit_code == 0);
    if (o.output.find("nothing was saved") != std::string::npos) {
      ++before_a_step_;
      CHECK_THAT(o.output, Contains("Stopped before step " + std::to_string(before + 1)) ||
                               Contains("Stopped before all ranks had met"));
      CHECK(newest == before);
    } else {
      ++saved_;
      CHECK(newest > before);
      CHECK_THAT(o.output, Contains("Training starts at step " + std::to_string(before + 1)) &&
                               Contains("Stopped after step " + std::to_string(newest) +
                                        "; the same command continues"));
      CHECK_NOTHROW(checkpoint::open_checkpoint(job_.checkpoints() + "/step-" + std::to_string(newest)));
    }
    if (!fs::exists(job_.checkpoints())) return;
    for (const auto& entry : fs::directory_iterator(job_.checkpoints()))
      CHECK(entry.path().extension() != ".tmp");
  }

  /// A run that nothing stops goes on too, and signals came before and after the first step.
  void finish(int count) {
    const int64_t newest = job_.newest_checkpoint();
    const Outcome o = run_command(command(newest + 2));
    INFO(o.output);
    CHECK(o.exit_code == 0);
    CHECK_THAT(o.output, Contains("Training starts at step " + std::to_string(newest + 1)) &&
                             Contains("Training completed"));
    std::printf("%s: %d runs stopped: %d saved, %d before a step, %d before main\n",
                launcher_.empty() ? "one process" : launcher_.c_str(), count, saved_, before_a_step_, early_);
    CHECK(saved_ + before_a_step_ + early_ == count);
    CHECK(saved_ >= count / 2);
  }

 private:
  std::string command(int64_t steps) const {
    return OTTAVA + launcher_ +
           job_.train(
               kSave +
               " --checkpoint.interval 100000 --checkpoint.keep_latest_k 2 --lr_scheduler.decay_ratio 0 "
               "--training.steps " +
               std::to_string(steps));
  }
  // Every other one in the first second, however far the run is then; the others after some of its steps.
  void wait_for_a_moment() {
    if (++moments_ % 2) {
      std::this_thread::sleep_for(std::chrono::microseconds(draw_() % 1'000'000));
      return;
    }
    const std::string metrics = job_.out() + "/metrics.jsonl";
    const auto size = [&]() -> uintmax_t { return fs::exists(metrics) ? fs::file_size(metrics) : 0; };
    const uintmax_t enough = size() + 1 + draw_() % 8000;
    wait_until(200, [&] { return size() >= enough; });
    std::this_thread::sleep_for(std::chrono::microseconds(draw_() % 3000));
  }
  void send(int group, int signal, Target target) {
    if (target == Target::process) ::kill(group, signal);
    if (target != Target::process) ::kill(-group, signal);
    if (target != Target::everyone) return;
    for (int process : processes_with(job_.file())) {
      if (process != group) ::kill(process, signal);
    }
  }

  Job job_;
  std::string launcher_;
  std::mt19937 draw_{std::random_device{}()};
  int moments_ = 0, saved_ = 0, before_a_step_ = 0, early_ = 0;
};

}  // namespace

TEST_CASE("a signal at any moment leaves a whole checkpoint, and the next start goes on") {
  const std::string launcher = GENERATE("", " launch -n 2 --");
  StoppedRuns runs(launcher);
  const int count = rounds();
  for (int round = 0; round < count; ++round) {
    for (int signal : kStopSignals) runs.stop_one(signal, static_cast<Target>(round % 3));
  }
  runs.finish(static_cast<int>(std::size(kStopSignals)) * count);
}

TEST_CASE("a rank that waits for others in vain is stopped by a signal, and says so") {
  const Job job;
  const int rank = GENERATE(0, 1);
  const int port = tcp::Listener(0).port();  // closed again
  const Outcome o = run_command(
      fmt::format(
          "exec {} launch -n 1 --nnodes 2 --node-rank {} --master-addr 127.0.0.1 --master-port {} --{}",
          OTTAVA, rank, port, job.train(kSave)),
      [&](int group) {
        wait_until(60, [&] { return processes_with(job.file()).size() > 1; });
        ::kill(group, SIGTERM);
      });
  INFO("rank " << rank << ": " << o.output);
  CHECK(o.exit_code == 0);
  CHECK(o.seconds < 60);  // not comm.init_timeout_seconds
  CHECK_THAT(o.output, Contains("Stopped before all ranks had met; nothing was saved"));
}

TEST_CASE("a run whose lines nobody reads any more goes on and saves") {
  const std::string launcher = GENERATE("", " launch -n 2 --");
  const Job job;
  const Outcome o =
      run_command("{ " OTTAVA + launcher + job.train(kSave) + "; echo ended with $? >&2; } | head -n 1");
  INFO(o.output);
  CHECK_THAT(o.output, Contains("ended with 0"));
  CHECK(job.newest_checkpoint() == 12);
}

TEST_CASE("rank 0 alone says why the run stops, also if another rank was asked to") {
  const bool is_asked = GENERATE(true, false);
  const Job job;
  const Outcome o = run_command(
      "exec " OTTAVA " launch -n 2 --" + job.train(kSave + " --training.steps 100000"), [&](int group) {
        wait_until(200, [&] { return job.last_step() > 0; });
        const int other = is_asked ? 0 : process_of_rank(job.file(), 1);
        ::kill(other ? other : group, SIGTERM);
      });
  INFO(o.output);
  CHECK(o.exit_code == 0);
  CHECK_THAT(o.output, Contains(is_asked ? "INFO - received Terminated: stopping before the next step"
                                         : "INFO - Another rank was asked to stop"));
  CHECK_THAT(o.output, !Contains(is_asked ? "Another rank" : "received Terminated"));
  CHECK(o.output.find("received") == o.output.rfind("received"));
}

TEST_CASE("a stopped run that may only load does not say that it saved") {
  const Job job;
  const Outcome o =
      run_command("exec " OTTAVA + job.train(kSave + " --checkpoint.load_only true --training.steps 100000"),
                  [&](int group) {
                    wait_until(200, [&] { return job.last_step() > 0; });
                    ::kill(group, SIGTERM);
                  });
  INFO(o.output);
  CHECK(o.exit_code == 0);
  CHECK_THAT(o.output, Contains("nothing was saved because checkpoint.load_only is true"));
  CHECK(job.newest_checkpoint() == 0);
}

TEST_CASE("a stop is heard by a validation, by questions and by samples, on all ranks at the same pass") {
  const std::string launcher = GENERATE("", " launch -n 2 --");
  const std::string what = GENERATE("validation", "questions", "samples");
  const Job job;
  // They would run for hours, or at least long enough for many signals.
  std::string asking = " --validation.dataset_path " + job.in("text.txt") +
                       " --validation.seq_len 16 --validation.local_batch_size 1";
  if (what == "validation") asking += " --validation.enable true --validation.steps 1000000000";
  if (what != "validation") asking += " --evaluation.enable true";
  if (what == "samples") asking += " --evaluation.prompts '[the octave]' --evaluation.max_new_tokens 20000";
  if (what == "questions") {
    std::ofstream items(job.in("items.jsonl"));
    for (int i = 0; i < 50'000; ++i)
      items << R"({"query": "the octave", "choices": ["above", "is played with one hand"], "gold": 0})"
            << "\n";
    asking += " --evaluation.tasks '[{name: items, path: " + job.in("items.jsonl") + "}]'";
  }
  const Outcome o = run_command("exec " OTTAVA + launcher + job.train(kSave + asking), [&](int group) {
    wait_until(200, [&] { return job.last_step() == 1; });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ::kill(group, SIGTERM);
  });
  INFO(launcher << " " << what << "\n" << o.output);
  CHECK(o.exit_code == 0);
  CHECK_FALSE(o.timed_out);
  CHECK_THAT(o.output, Contains("Validation after step 1 was interrupted") &&
                           Contains("Stopped after step 1; the same command continues from here"));
  CHECK_NOTHROW(checkpoint::open_checkpoint(job.checkpoints() + "/step-1"));
  const auto results = [&](int64_t step) {
    return std::ranges::count_if(logged_lines(job.out()), [&](const Json& line) {
      const bool is_one = line.find("validation_metrics/loss") != nullptr ||
                          line.find("evaluation_metrics/items/acc") != nullptr ||
                          line.find("samples") != nullptr;
      return is_one && line.at("step", "metrics").as_integer("step") == step;
    });
  };
  CHECK(results(1) == 0);
  // What was broken off comes first, may be broken off again, and comes only once.
  const Outcome twice = run_command("exec " OTTAVA + launcher + job.train(kSave + asking), [&](int group) {
    wait_until(200, [&] {
      return read_file(job.out() + "/events.jsonl").find("goes on after step 1") != std::string::npos;
    });
    ::kill(group, SIGTERM);
  });
  INFO(twice.output);
  CHECK(twice.exit_code == 0);
  CHECK_THAT(twice.output, Contains("Validation after step 1 was interrupted") &&
                               Contains("Stopped after step 1; the same command continues from here"));
  CHECK(results(1) == 0);
  const std::string few =
      " --validation.steps 2 --evaluation.max_new_tokens 2 --evaluation.max_examples 4 --training.steps ";
  for (const char* steps : {"2", "3"}) {
    const Outcome again = run_command("exec " OTTAVA + launcher + job.train(kSave + asking + few + steps));
    INFO(again.output);
    CHECK(again.exit_code == 0);
    CHECK((again.output.find("The validation after step 1 had no result yet, so it comes first") !=
           std::string::npos) == (*steps == '2'));
    CHECK(results(1) == 1);
  }
}
