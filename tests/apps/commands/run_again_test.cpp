#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "core/contains.h"
#include "core/cpu/isa.h"
#include "core/io/file.h"
#include "core/text/split.h"
#include "tests/apps/commands/tiny_runs.h"
#include "tests/support/catch.h"
#include "tests/support/launched.h"
#include "tests/support/tiny_training.h"
#include "tests/support/variable.h"

// The same command once more: runs that are finished, longer, shorter, or in somebody else's folder.

using namespace ottava;
using namespace ottava::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

TEST_CASE(
    "what killed ranks left half written is removed by the next start, what may be written now is not") {
  TinyRuns runs;
  const std::string options =
      "--training.steps 4 --profiling.enable_profiling true --profiling.profile_freq 4";
  runs.train(options);
  const auto an_hour_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  std::vector<std::string> left;
  for (const char* name : {"decisions.json", "data_index/text", "comm_traces/rank_1.json",
                           "profile_traces/iteration_4/rank0_trace.json.gz"}) {
    left.push_back(runs / "out/" + name + ".tmp0123456789abcdef");
    fs::create_directories(fs::path(left.back()).parent_path());
    std::ofstream(left.back()) << "{";
    fs::last_write_time(left.back(), an_hour_ago);
  }
  const std::string now = runs / "out/comm_traces/rank_1.json.tmpfedcba9876543210";
  std::ofstream(now) << "{";
  runs.train(options);
  for (const std::string& path : left) {
    INFO(path);
    CHECK_FALSE(fs::exists(path));
  }
  CHECK(fs::exists(now));
}

TEST_CASE("the command of a finished run says that it is finished and touches nothing") {
  TinyRuns runs;
  CHECK_THAT(runs.train(""), Contains("Saved out/checkpoint/step-6: "));
  const auto weights = runs / "out/checkpoint/step-6/model.safetensors";
  const auto written = fs::last_write_time(weights);
  const std::string metrics = read_file(runs / "out/metrics.jsonl");
  CHECK_THAT(runs.train(""), Contains("This run is finished: out/checkpoint/step-6 holds step 6 of 6"));
  CHECK_THAT(runs.train("--training.steps 4"),
             Contains("There is nothing to train: out/checkpoint/step-6 is past training.steps 4"));
  CHECK(fs::last_write_time(weights) == written);
  CHECK(read_file(runs / "out/metrics.jsonl") == metrics);

  // A longer one goes on from its end and says what is new.
  const std::string longer = runs.train("--training.steps 8 --optimizer.lr 0.5");
  CHECK_THAT(longer, Contains("Changed since then: training.steps 6 -> 8") &&
                         Contains("Changed since then: optimizer.lr 0.0008 -> 0.5") &&
                         Contains("Training starts at step 7"));
  CHECK(fs::last_write_time(weights) == written);
}

TEST_CASE(
    "steps that are counted anew on a schedule that is not are warned of a rate that has fallen to its end") {
  TinyRuns runs;
  runs.train("--training.steps 4 --lr_scheduler.warmup_steps 1");
  const auto from = [&](const std::string& folder, const std::string& more) {
    return runs.train("--job.dump_folder " + folder +
                      " --lr_scheduler.warmup_steps 1 --checkpoint.initial_load_path out "
                      "--checkpoint.initial_load_model_only "
                      "false --checkpoint.exclude_from_loading " +
                      more);
  };
  const char* warning = "the learning rate goes on at step 4 of a schedule of ";
  CHECK_THAT(from("a", "'[train_state]'"),
             Contains(warning + std::string("6, so that for the last 4 of 6 steps to come it is 0: add "
                                            "lr_scheduler to checkpoint.exclude_from_loading, or raise")));
  CHECK_THAT(from("b", "'[train_state, lr_scheduler]'"), !Contains(warning));
  CHECK_THAT(from("c", "'[train_state]' --lr_scheduler.total_steps 10"), !Contains(warning));
  CHECK_THAT(from("d", "'[optimizer]'"), !Contains(warning));
}

TEST_CASE("a run that goes on with other instructions is told that its sums differ") {
  TinyRuns runs;
  const std::string told = "but its checkpoint was made with";
  const auto with = [&](const char* set, const char* steps) {
    const Variable instructions("OTTAVA_CPU_ISA", set);
    return runs.train(std::string("--training.steps ") + steps);
  };
  with("baseline", "2");
  CHECK_FALSE(contains_text(with("baseline", "4"), told));
  if (cpu::isa() == cpu::Isa::baseline) return;
  const std::string here(cpu::name_of(cpu::isa()));
  CHECK_THAT(with(here.c_str(), "6"),
             Contains("the run continues with " + here + ", oneDNN") && Contains(told + " baseline, oneDNN"));
  CHECK_FALSE(contains_text(with(here.c_str(), "8"), told));
}

TEST_CASE("the resolved configuration is written where asked, in a folder that is made") {
  TinyRuns runs;
  runs.train("--checkpoint.enable false --job.save_config_file of/this/run.yaml");
  CHECK_THAT(read_file(runs / "out/of/this/run.yaml"), Contains("save_config_file: of/this/run.yaml"));
  runs.train("--checkpoint.enable false --job.save_config_file ../beside.yaml");
  CHECK(fs::exists(runs / "beside.yaml"));
}

TEST_CASE("going back to a step at or past the end trains nothing and touches nothing") {
  TinyRuns runs;
  runs.train("--checkpoint.last_save_model_only false");
  const std::string events = read_file(runs / "out/events.jsonl"),
                    metrics = read_file(runs / "out/metrics.jsonl");
  CHECK_THAT(
      runs.train("--checkpoint.load_step 4 --training.steps 4"),
      Contains("This run is finished: out/checkpoint/step-4 holds step 4 of 4") && !Contains("branch"));
  CHECK_THAT(runs.train("--checkpoint.load_step 4 --training.steps 3"),
             Contains("There is nothing to train: out/checkpoint/step-4 is past training.steps 3"));
  CHECK(read_file(runs / "out/events.jsonl") == events);
  CHECK(read_file(runs / "out/metrics.jsonl") == metrics);
}

TEST_CASE("going back behind checkpoints keeps their metrics apart") {
  TinyRuns runs;
  runs.train("--checkpoint.last_save_model_only false");
  const std::string metrics = read_file(runs / "out/metrics.jsonl");
  CHECK_THAT(
      runs.train("--checkpoint.load_step 2 --training.steps 7 --checkpoint.last_save_model_only false"),
      Contains("Training starts at step 3"));
  CHECK(read_file(runs / "out/metrics.jsonl.abandoned") == metrics);
  CHECK(logged(runs / "out", "lr").size() == 7);
  // What a run that was cut off logged past its checkpoint is written again, and not kept.
  CHECK_THAT(runs.train("--training.steps 8"), Contains("Training starts at step 8"));
  CHECK_FALSE(fs::exists(runs / "out/metrics.jsonl.abandoned-2"));
}

TEST_CASE("a run whose last save holds only weights is not trained over unasked") {
  TinyRuns runs;
  runs.train("--checkpoint.last_save_model_only true");
  const auto weights = runs / "out/checkpoint/step-6/model.safetensors";
  const auto written = fs::last_write_time(weights);
  CHECK_THAT(runs.train("--checkpoint.last_save_model_only true"),
             Contains("This run is finished: out/checkpoint/step-6 holds step 6 of 6. It has only weights "
                      "(checkpoint.last_save_model_only); to train further from them, start a run in another "
                      "job.dump_folder with checkpoint.initial_load_path: out/checkpoint/step-6; to start") &&
                 !Contains("raise training.steps"));
  CHECK_THAT(runs.train("--checkpoint.exclude_from_loading '[optimizer]'"),
             Contains("holds step 6 of 6. To continue training, raise training.steps"));
  CHECK_THAT(
      runs.train("--training.steps 8", 1),
      Contains(
          "step-6 has only weights: resuming from step 4 would train its steps again and set it aside") &&
          Contains("set checkpoint.load_step: 4"));
  CHECK(fs::last_write_time(weights) == written);
  const std::string back = "--training.steps 8 --checkpoint.load_step 4";
  CHECK_THAT(runs.train(back), Contains("Training starts at step 5"));
  CHECK(fs::exists(runs / "out/checkpoint/step-6.abandoned/model.safetensors"));
  CHECK_THAT(runs.train(back), Contains("This run is finished: out/checkpoint/step-8 holds step 8 of 8") &&
                                   Contains("to begin the branch anew, move its checkpoints away; to start"));
  CHECK_THAT(runs.train(back + " --training.steps 9"), Contains("Training starts at step 9"));
  CHECK_THAT(runs.train("--checkpoint.load_step 5 --training.steps 9", 1),
             Contains("has steps 2, 4, 6, 8, 9"));
}

TEST_CASE(
    "the command of a run that is over after its epochs says that it is finished, whatever its last save "
    "holds") {
  TinyRuns runs;
  const std::string model_only = GENERATE("true", "false"),
                    epochs = "--training.epochs 2 --checkpoint.last_save_model_only " + model_only + " ";
  CHECK_THAT(runs.train(epochs), Contains("Training completed"));
  const std::string events = read_file(runs / "out/events.jsonl"),
                    metrics = read_file(runs / "out/metrics.jsonl");
  CHECK_THAT(runs.train(epochs),
             Contains("This run is finished: out/checkpoint/step-") &&
                 Contains(model_only == "true" ? "It has only weights"
                                               : "To continue training, raise training.epochs"));
  CHECK_THAT(runs.train(epochs + "--training.epochs 1"),
             Contains("There is nothing to train: out/checkpoint/step-") &&
                 Contains(", where training.epochs 1 end"));
  CHECK(read_file(runs / "out/events.jsonl") == events);
  CHECK(read_file(runs / "out/metrics.jsonl") == metrics);
}

TEST_CASE(
    "a finished run whose last validation was broken off does the rest of it when it is started again") {
  TinyRuns runs;
  const std::string model_only = GENERATE("true", "false"),
                    end = GENERATE("--training.steps 1 ", "--training.epochs 0.001 ");
  std::ofstream(runs / "items.jsonl") << R"({"query": "one", "choices": ["two", "three"], "gold": 0})"
                                      << "\n";
  const std::string asking = end + "--checkpoint.last_save_model_only " + model_only +
                             " --validation.enable true --validation.datasets '[{name: a, path: text.txt}, "
                             "{name: b, path: text.txt}]' --validation.seq_len 16 --evaluation.enable true "
                             "--evaluation.tasks '[{name: items, path: items.jsonl}]' --evaluation.prompts "
                             "'[one two]' --evaluation.max_new_tokens 2 --validation.steps ";
  const Outcome o = runs.run("train tiny.yaml " + asking + "1000000000", [&](int group) {
    wait_until(200, [&] { return fs::exists(runs / "out/checkpoint/step-1"); });
    ::kill(group, SIGTERM);
  });
  INFO(o.output);
  CHECK(o.exit_code == 0);
  CHECK_THAT(o.output, Contains("Validation after step 1 was interrupted; the next start of the run does "
                                "the rest") &&
                           Contains("Training completed"));
  const auto weights = runs / "out/checkpoint/step-1/model.safetensors";
  const auto written = fs::last_write_time(weights);
  CHECK_THAT(runs.train(asking + "2"), Contains("The validation after step 1 had no result yet") &&
                                           !Contains("step:  2") && Contains("validate a step:  1") &&
                                           Contains("validate b step:  1") && Contains("evaluate step:  1") &&
                                           Contains("sample step:  1"));
  CHECK(fs::last_write_time(weights) == written);
  const std::string metrics = read_file(runs / "out/metrics.jsonl");
  CHECK_THAT(runs.train(asking + "2"), Contains("This run is finished: out/checkpoint/step-1"));
  CHECK(read_file(runs / "out/metrics.jsonl") == metrics);

  // Only what is missing, whatever ended the run.
  std::string without;
  for (const std::string_view line : split_text(metrics, '\n'))
    if (!line.empty() && !contains_text(line, "validation_metrics/b/")) without += std::string(line) + "\n";
  std::ofstream(runs / "out/metrics.jsonl") << without;
  CHECK_THAT(runs.train(asking + "2"), Contains("validate b step:  1") && !Contains("validate a step:") &&
                                           !Contains("evaluate step:") && !Contains("sample step:"));
  // A run that keeps no such record, or is not to change it, stays finished.
  std::ofstream(runs / "out/metrics.jsonl") << without;
  for (const char* more : {" --metrics.enable_json_lines false", " --checkpoint.load_only true"})
    CHECK_THAT(runs.train(asking + "2" + more), Contains("This run is finished: out/checkpoint/step-1"));
}

TEST_CASE("a run says that what it still asks at its end, it asks weights that were rounded") {
  TinyRuns runs;
  const std::string type = GENERATE("float32", "bfloat16");
  const std::string asking = "--checkpoint.last_save_model_only true --checkpoint.export_dtype " + type +
                             " --validation.enable true --validation.dataset_path text.txt "
                             "--validation.seq_len 16 --validation.freq 1 --validation.steps 1";
  CHECK_THAT(runs.train(asking), !Contains("were exported as"));
  const std::string metrics = read_file(runs / "out/metrics.jsonl");
  const size_t last = metrics.rfind("{\"step\":6,");
  REQUIRE(contains_text(metrics.substr(last), "validation_metrics"));
  std::ofstream(runs / "out/metrics.jsonl") << metrics.substr(0, last);
  const std::string again = runs.train(asking);
  CHECK_THAT(again,
             Contains("The validation after step 6 had no result yet") && Contains("validate step:  6"));
  CHECK(contains_text(again, "Its weights were exported as BF16: results may differ") ==
        (type == "bfloat16"));
}

TEST_CASE("what a run cannot do is refused before it decides anything or opens its data") {
  TinyRuns runs;
  runs.train("--checkpoint.last_save_model_only false");
  std::ofstream(runs / "empty.txt");
  const auto refusal = [&](const std::string& options) {
    return runs.train("--training.dataset_path empty.txt --training.steps 9 " + options, 1);
  };
  REQUIRE_THAT(refusal(""), Contains("empty.txt"));
  for (const char* more : {"", " --training.epochs 2"}) {
    CHECK_THAT(refusal(std::string("--checkpoint.load_step 5") + more),
               Contains("step-5 does not exist: out/checkpoint has steps 2, 4, 6"));
    CHECK_THAT(refusal(std::string("--model.rope_theta 10000") + more),
               Contains("step-6 has another model than this configuration: rope_theta 500000.0 and 10000.0"));
  }
  CHECK_THAT(refusal("--training.cuda_graphs on"), Contains("cuda_graphs is on, but the device is cpu"));
  CHECK_THAT(refusal("--profiling.enable_profiling true --profiling.profile_ranks 0,3"),
             Contains("profile_ranks contains rank 3, expected ranks 0 to 0"));
  CHECK_THAT(refusal("--profiling.profile_ranks 0,3"), Contains("empty.txt"));
}

TEST_CASE("a run that begins at another's end is refused, not called completed") {
  TinyRuns runs;
  runs.train("--checkpoint.last_save_model_only false");
  const std::string begin =
      "--job.dump_folder next --checkpoint.initial_load_path out --checkpoint.initial_load_model_only false ";
  CHECK_THAT(runs.train(begin, 1), Contains("[checkpoint.initial_load_path] out/checkpoint/step-6 is at step "
                                            "6, but the run ends at training.steps 6: set a later end"));
  CHECK_THAT(runs.train(begin + "--training.steps 7"), Contains("Training starts at step 7"));
}

TEST_CASE("a run that only looks leaves the record of the one that it looks at") {
  TinyRuns runs;
  runs.train("--checkpoint.last_save_model_only false");
  const std::string events = read_file(runs / "out/events.jsonl"),
                    metrics = read_file(runs / "out/metrics.jsonl"),
                    decisions = read_file(runs / "out/decisions.json");
  CHECK_THAT(
      runs.train(
          "--checkpoint.load_only true --checkpoint.load_step 2 --training.steps 5 --optimizer.lr 0.1"),
      Contains("checkpoint.load_only: metrics and events are written to out/load_only") &&
          Contains("Training completed"));
  CHECK(read_file(runs / "out/events.jsonl") == events);
  CHECK(read_file(runs / "out/metrics.jsonl") == metrics);
  CHECK(read_file(runs / "out/decisions.json") == decisions);
  CHECK(logged(runs / "out/load_only", "lr").size() == 3);
}

TEST_CASE("from a text to a run in two commands, and on from there") {
  TinyRuns runs;
  std::ofstream(runs / "mine.txt") << generated_text(3000, 5);
  auto shell = [&](const std::string& line) {
    const Outcome out = runs.run_shell("O=" OTTAVA "; " + line);
    INFO(line << "\n" << out.output);
    CHECK(out.exit_code == 0);
    return out.output;
  };
  CHECK_THAT(shell("$O init mine.txt --output first --minutes 1"),
             Contains("Next: ottava train first/ottava.yaml"));
  const std::string trained = shell(
      "$O train first/ottava.yaml --training.steps 4 --training.threads 1 --metrics.peak_tflops_bf16 1");
  CHECK_THAT(trained, Contains("Model llama3 of one's own") &&
                          Contains("rope_scaling    none       default") && Contains("0 bad records") &&
                          Contains("Saved first/run/checkpoint/step-4"));
  CHECK_THAT(shell("$O train first/ottava.yaml --training.steps 4"), Contains("This run is finished"));
  CHECK_THAT(
      shell("echo 'a word' | $O generate --checkpoint first/run --max-tokens 3 --device cpu 2>/dev/null"),
      Catch::Matchers::StartsWith("a word"));
  const Outcome again = runs.run("init mine.txt --output first");
  CHECK(again.exit_code == 1);
  CHECK_THAT(again.output, Contains("first/ottava.yaml already exists"));
}

TEST_CASE(
    "a bad record that the first look did not reach ends the run before training does, with a checkpoint") {
  TinyRuns runs;
  {
    std::ofstream lines(runs / "late.jsonl");
    for (int i = 0; i < 200'000; ++i) lines << "{\"text\": \"one of many lines of some length\"}\n";
    lines << "{\"body\": \"the last\"}\n";
  }
  const std::string arguments =
      "--training.dataset_path late.jsonl --training.data_check_seconds 0 --checkpoint.interval 1000000 "
      "--metrics.log_freq 1000000 "
      // In order and slowly, so that the look through the data comes first on a busy machine too.
      "--training.shuffle false --model.dim 256 --model.n_layers 4 --training.seq_len 16 ";
  const std::string found = runs.train(arguments + "--training.steps 1000000", 1);
  CHECK_THAT(found, Contains("as far as training.data_check_seconds goes") &&
                        Contains("late.jsonl' line 200001, column ") &&
                        Contains("the object has no key \"text\", only \"body\"") &&
                        Contains("the run ends after step ") && Contains("training has not reached it yet") &&
                        Contains("whose checkpoint is saved") && Contains("Saved out/checkpoint/step-"));
  CHECK_THAT(runs.train(arguments + "--training.bad_records skip --training.steps 1", 0),
             Contains("There is nothing to train") || Contains("This run is finished"));
}

TEST_CASE("a run without checkpoints in the folder of one that has some says what becomes of its metrics") {
  Workplace here;
  CHECK_FALSE(
      has(here.run("train tiny.yaml --checkpoint.enable false").output, "checkpoints of another run"));
  CHECK(has(here.run("train tiny.yaml --training.steps 3").output, "step-3: "));
  const std::string metrics = read_file(here / "out/metrics.jsonl");
  const Outcome out = here.run("train tiny.yaml --checkpoint.enable false");
  INFO(out.output);
  CHECK(out.exit_code == 0);
  CHECK(has(out.output, "out/checkpoint has checkpoints of another run, up to step 3"));
  CHECK(has(out.output, "are now those with .previous behind their names"));
  CHECK(read_file(here / "out/metrics.jsonl.previous-2") == metrics);
}

TEST_CASE("a run without checkpoints needs nothing of what has the name of their folder") {
  Workplace here;
  fs::create_directories(here / "out");
  std::ofstream(here / "out/checkpoint") << "a file";
  const Outcome out = here.run("train tiny.yaml --checkpoint.enable false");
  INFO(out.output);
  CHECK(out.exit_code == 0);
}

TEST_CASE("the files of a run are no data where its folder is that of the data, too") {
  TinyRuns runs;
  fs::create_directories(runs / "both/notes");
  fs::rename(runs / "text.txt", runs / "both/text.txt");
  std::ofstream(runs / "both/notes/metrics.jsonl") << "{\"text\": \"of another\"}\n";
  std::ofstream(runs / "both/a.jsonl") << "{\"text\": \"one\"}\n";
  const std::string sources = GENERATE("both", "'both/*'", "'[both/*.txt, both/*.jsonl, both/notes]'");
  const std::string options =
      "--job.dump_folder both --profiling.enable_profiling true "
      "--profiling.profile_freq 4 --metrics.save_for_all_ranks true "
      "--training.dataset_path " +
      sources + " --training.steps ";
  INFO(options);
  runs.train(options + "4");
  CHECK(fs::exists(runs / "both/metrics.jsonl"));
  fs::create_directories(runs / "both/comm_traces");
  std::ofstream(runs / "both/comm_traces/rank_0.json") << "{\n}\n";
  std::ofstream(runs / "both/metrics.rank1.jsonl") << "{}\n";
  const std::string again = runs.train(options + "6");
  CHECK_THAT(again, Contains("Training starts at step 5") && Contains(" 3 files, ") &&
                        !Contains("data has changed"));
  // Also of starts that write less.
  CHECK_THAT(runs.train("--job.dump_folder both --metrics.enable_json_lines false --training.dataset_path " +
                        sources + " --training.steps 7"),
             Contains("Training starts at step 7") && !Contains("data has changed"));
  // Named alone, it is data.
  CHECK_THAT(
      runs.train("--job.dump_folder both --training.dataset_path both/metrics.jsonl --training.steps 8", 1),
      Contains("both/metrics.jsonl' line 1"));
}
