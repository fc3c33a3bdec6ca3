#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "tests/apps/commands/tiny_runs.h"
#include "tests/support/catch.h"

// The program, with calls on files that fail (tests/support/failing_calls.cpp).

using namespace ottava;
using namespace ottava::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

/// Calls that fail, of those on paths that contain `part`.
struct FailingCalls {
  std::string call, part;
  int error = EIO, first = 1, count = 1;
  int pause_ms = 0;  // for which a pause before another attempt lasts
};

std::string with_failing(const FailingCalls& f, const std::string& command) {
  return fmt::format("OTTAVA_FAILING_CALLS='{} {} {} {} {} {}' LD_PRELOAD=" OTTAVA_FAILING_CALLS
                     " exec " OTTAVA " {}",
                     f.call, f.error, f.first, f.count, f.pause_ms, f.part, command);
}

// Reads of a file of data that fail: while it is looked at, counted, and read for the first steps.
std::vector<FailingCalls> several(const std::string& file) {
  std::vector<FailingCalls> calls;
  for (const char* call : {"open", "pread"})
    for (int first = 1; first <= 4; ++first) calls.push_back({call, file, EIO, first});
  for (int first = 1; first <= 8; ++first) calls.push_back({"stale", file, ESTALE, first});
  return calls;
}

int times_in(const std::string& text, const std::string& part) {
  int times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

}  // namespace

TEST_CASE("a start goes on where a call on its folders, its metrics or its events fails for a moment") {
  const TinyRuns runs;
  runs.train("--training.steps 2 --profiling.enable_profiling true");
  const FailingCalls f = GENERATE(
      FailingCalls{"access", "out"}, FailingCalls{"open", "out/.lock"}, FailingCalls{"flock", "out/.lock"},
      FailingCalls{"pwrite", "out/.lock"}, FailingCalls{"ftruncate", "out/checkpoint/.lock", ESTALE},
      FailingCalls{"realpath", "out"}, FailingCalls{"access", "out/data_index"},
      FailingCalls{"access", "out/profile_traces"}, FailingCalls{"stat", "out/metrics.jsonl"},
      FailingCalls{"pread", "out/metrics.jsonl"}, FailingCalls{"ftruncate", "out/metrics.jsonl"},
      FailingCalls{"stat", "out/events.jsonl"}, FailingCalls{"open", "out/decisions.json.tmp"},
      FailingCalls{"fsync", "out/decisions.json.tmp"}, FailingCalls{"rename", "out/decisions.json.tmp"},
      FailingCalls{"readdir", "configs/tokenizers/en-2256"}, FailingCalls{"stat", "tokenizers/en-2256"},
      FailingCalls{"stat", "tokenizers/en-2256", EIO, 2}, FailingCalls{"stat", "text.txt", ESTALE});
  INFO(f.call << " " << f.part);
  const Outcome went_on =
      runs.run_shell(with_failing(f, "train tiny.yaml --training.steps 4 --profiling.enable_profiling true"));
  INFO(went_on.output);
  CHECK(went_on.exit_code == 0);
  CHECK_THAT(went_on.output, Contains(", and is tried again in 10 s: ") && Contains("Training completed"));
  CHECK_FALSE(fs::exists(runs / "out/metrics.jsonl.previous"));
}

TEST_CASE("a start that asks which results are missing goes on where its metrics fail for a moment") {
  const TinyRuns runs;
  const std::string validating =
      "train tiny.yaml --validation.enable true --validation.dataset_path text.txt --validation.steps 1 "
      "--validation.freq 2 --training.steps ";
  CHECK(runs.run(validating + "2").exit_code == 0);
  for (const char* call : {"stat", "open", "pread"}) {
    int times = 1;
    for (int first = 1; times > 0; ++first) {
      fs::remove_all(runs / "again");
      fs::copy(runs / "out", runs / "again", fs::copy_options::recursive);
      const Outcome went_on = runs.run_shell(
          with_failing({call, "again/metrics.jsonl", EIO, first}, validating + "4 --job.dump_folder again"));
      INFO(call << " " << first << "\n" << went_on.output);
      CHECK(went_on.exit_code == 0);
      times = times_in(went_on.output, ", and is tried again in 10 s: ");
      CHECK(times <= 1);
      if (first > 20) FAIL("the calls do not end");
    }
  }
}

TEST_CASE("a start whose folder fails three times ends with one sentence of all ranks") {
  const TinyRuns runs;
  for (const auto& [f, said] : {std::pair(FailingCalls{"open", "out/.lock", EIO, 1, 3},
                                          "[job.dump_folder] cannot write out/.lock: Input/output error"),
                                std::pair(FailingCalls{"flock", "out/.lock", EIO, 1, 3},
                                          "[job.dump_folder] cannot lock out/.lock: Input/output error"),
                                std::pair(FailingCalls{"open", "out/metrics.jsonl", EIO, 1, 3},
                                          "[file] cannot create out/metrics.jsonl: Input/output error")}) {
    fs::remove_all(runs / "out");
    INFO(said);
    const Outcome ended = runs.run_shell(with_failing(f, "launch -n 2 -- train tiny.yaml"));
    INFO(ended.output);
    CHECK(ended.exit_code != 0);
    CHECK(ended.all_say(2, said));
  }
}

TEST_CASE("where a file system has no locks, a start says so and goes on") {
  const TinyRuns runs;
  for (const int error : {EOPNOTSUPP, ENOLCK, ENOSYS}) {
    fs::remove_all(runs / "out");
    const Outcome went_on =
        runs.run_shell(with_failing({"flock", "out/.lock", error}, "train tiny.yaml --training.steps 1"));
    INFO(went_on.output);
    CHECK(went_on.exit_code == 0);
    CHECK_THAT(went_on.output, Contains("out cannot be locked (") &&
                                   Contains("a second run in this folder would go unnoticed") &&
                                   !Contains("is tried again"));
  }
}

TEST_CASE("rank 0 may try decisions again for longer than ranks wait for each other") {
  const TinyRuns runs;
  runs.train("--training.steps 2");
  // The first read is that of who looks at the whole checkpoint.
  const Outcome went_on = runs.run_shell(
      with_failing({"pread", "step-2/decisions.json", EIO, 2, 2, 8000},
                   "launch -n 2 -- train tiny.yaml --training.steps 4 --comm.init_timeout_seconds 15"));
  INFO(went_on.output);
  CHECK(went_on.exit_code == 0);
  CHECK_THAT(went_on.output, Contains("step-2/decisions.json could not be read, and is tried again in 10 s"));
}

TEST_CASE("a checkpoint that stays unreadable is waited for once in a start, and named as skipped") {
  const TinyRuns runs;
  runs.train("--training.steps 4");
  for (const char* file : {"step-4/", "step-4/model", "step-4/training_state"}) {
    fs::remove_all(runs / "other");
    fs::copy(runs / "out", runs / "other", fs::copy_options::recursive);
    const Outcome went_on = runs.run_shell(with_failing(
        {"pread", file, EIO, 1, 100'000}, "train tiny.yaml --job.dump_folder other --training.steps 6"));
    INFO(went_on.output);
    CHECK(went_on.exit_code == 0);
    CHECK(times_in(went_on.output, "and is tried again in 10 s") == 2);
    CHECK(times_in(went_on.output, "step-4 could not be read and is skipped: ") == 1);
    CHECK_FALSE(has(went_on.output, "broken"));
    CHECK_THAT(went_on.output, Contains("Loaded checkpoint other/checkpoint/step-2"));
  }
  const Outcome ended = runs.run_shell(with_failing({"pread", "/step-", EIO, 1, 100'000}, "train tiny.yaml"));
  INFO(ended.output);
  CHECK(ended.exit_code == 1);
  CHECK(times_in(ended.output, "and is tried again in 10 s") == 4);  // two checkpoints
  CHECK_THAT(ended.output, Contains("out/checkpoint are broken or could not be read, which may pass; move"));
}

TEST_CASE("a checkpoint that this user may not read is not passed over for an earlier one") {
  const TinyRuns runs;
  runs.train("--training.steps 4");
  for (const char* file : {"step-4/manifest", "step-4/config", "step-4/model.", "step-4/training_state"}) {
    const Outcome ended = runs.run_shell(
        with_failing({"open", file, EACCES, 1, 100'000}, "train tiny.yaml --training.steps 6"));
    INFO(file << "\n" << ended.output);
    CHECK(ended.exit_code == 1);
    CHECK_THAT(ended.output,
               Contains("step-4 may not be read, and going on from an earlier one would train its "
                        "steps again and set it aside: permit this user to read it, or set "
                        "checkpoint.load_step to the step to go back to: ") &&
                   Contains("Permission denied") && !Contains("broken"));
  }
  const Outcome went_back =
      runs.run_shell(with_failing({"open", "step-4/", EACCES, 1, 100'000},
                                  "train tiny.yaml --training.steps 6 --checkpoint.load_step 2"));
  INFO(went_back.output);
  CHECK(went_back.exit_code == 0);
}

TEST_CASE("data that cannot be flushed at the end is whole, and its preparation says so") {
  const TinyRuns runs;
  const std::string prepare = "data prepare text.txt --tokenizer " OTTAVA_SOURCE_DIR
                              "/configs/tokenizers/en-2256 --output made/shards";
  for (const FailingCalls& f :
       {FailingCalls{"fsync", "/made", EIO, 4}, FailingCalls{"rename", "made/shards"}}) {
    fs::remove_all(runs / "made");
    fs::create_directories(runs / "made");
    INFO(f.call);
    const Outcome made = runs.run_shell(with_failing(f, prepare));
    INFO(made.output);
    CHECK(made.exit_code == 0);
    CHECK_THAT(made.output, Contains(" bytes per token"));
    CHECK(has(made.output,
              "the shards in 'made/shards' are whole, but a loss of power could take away their "
              "names: [file] cannot flush the folder ") == (f.call == "fsync"));
    CHECK(fs::exists(runs / "made/shards/tokens-00000.bin"));
  }
}

TEST_CASE("a run reads its tokenizer and its data again where a call fails for a moment") {
  const TinyRuns runs;
  const std::string shipped = OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256";
  CHECK(runs.run("data prepare text.txt --tokenizer " + shipped + " --output shards").exit_code == 0);
  const Outcome prepared =
      runs.run_shell(with_failing({"pread", "en-2256/tokenizer.json"},
                                  "data prepare text.txt --tokenizer " + shipped + " --output again"));
  CHECK(prepared.exit_code == 0);
  CHECK(has(prepared.output, "the tokenizer could not be read, and is tried again in 10 s: "));
  CHECK(runs.run_shell("gzip -k text.txt").exit_code == 0);
  const std::string text = "train tiny.yaml --training.steps 2 --training.data_check_seconds 0 ",
                    gzip = text + "--training.dataset_path text.txt.gz ",
                    shards = text + "--training.dataset_path shards ";
  const auto losses = [&](const std::string& arguments) {
    fs::remove_all(runs / "out");
    runs.run(arguments);
    return logged(runs / "out", "loss_metrics/global_avg_loss");
  };
  for (const auto& [command, calls] :
       {std::pair(text, std::vector<FailingCalls>{{"pread", "en-2256/tokenizer.json"},
                                                  {"open", "en-2256/tokenizer.json"}}),
        std::pair(text, several("text.txt")), std::pair(gzip, several("text.txt.gz")),
        std::pair(shards, several("tokens-00000.bin"))}) {
    const std::vector<double> expected = losses(command);
    CHECK(expected.size() == 2);
    for (const FailingCalls& f : calls) {
      fs::remove_all(runs / "out");
      const Outcome went_on = runs.run_shell(with_failing(f, command));
      INFO(command << f.call << " " << f.part << " " << f.first << "\n" << went_on.output);
      CHECK(went_on.exit_code == 0);
      const int times = times_in(went_on.output, ", and is tried again in 10 s: ");
      CHECK((times == 1 || (times == 0 && f.first > 2)));  // not every file is read so often
      CHECK(logged(runs / "out", "loss_metrics/global_avg_loss") == expected);
    }
  }
}

TEST_CASE("a file of data is looked at again where the system could not tell what it is") {
  const TinyRuns runs;
  fs::create_directory(runs / "folder");
  fs::copy_file(runs / "text.txt", runs / "folder/a.txt");
  std::ofstream(runs / "sources.list") << "text.txt\n";
  const struct {
    FailingCalls calls;
    const char *source, *said;
  } cases[] = {{{"stat", "text.txt"}, "text.txt", "'text.txt' could not be looked at"},
               {{"stat", "text.txt", EIO, 2}, "text.txt", "'text.txt' could not be read"},
               {{"stat", "text.txt", EIO, 3}, "text.txt", "'text.txt' could not be read"},
               {{"readdir", "folder"}, "folder", "'folder' could not be listed"},
               {{"glob", "folder"}, "'folder/*.txt'", "the files of 'folder/*.txt' could not be listed"},
               {{"readdir", "folder"}, "'folder/*.txt'", "the files of 'folder/*.txt' could not be listed"},
               {{"lstat", "folder"}, "'fold*/a.txt'", "the files of 'fold*/a.txt' could not be listed"},
               {{"open", "sources.list"}, "@sources.list", "'sources.list' could not be read"}};
  for (const auto& [calls, source, said] : cases) {
    const Outcome seen = runs.run_shell(with_failing(calls, std::string("data inspect ") + source));
    INFO(seen.output);
    CHECK(seen.exit_code == 0);
    CHECK(times_in(seen.output, std::string(said) + ", and is tried again in 10 s: ") == 1);
  }
  const Outcome ended =
      runs.run_shell(with_failing({"stat", "text.txt", EIO, 1, 3}, "data inspect text.txt"));
  CHECK(ended.exit_code == 1);
  CHECK_THAT(ended.output, Contains("[data] cannot access 'text.txt': Input/output error"));
}

TEST_CASE("a start whose data a glob names goes on where their folder could not be listed for a moment") {
  const TinyRuns runs;
  for (const char* name : {"folder", "other"}) {
    fs::create_directory(runs / name);
    fs::copy_file(runs / "text.txt", runs / (std::string(name) + "/a.txt"));
  }
  const auto train = [&](const FailingCalls& f, const std::string& glob) {
    return runs.run_shell(with_failing(
        f, fmt::format("train tiny.yaml --training.steps 1 --training.dataset_path '{}'", glob)));
  };
  const Outcome went_on = train({"readdir", "folder"}, "folder/*.txt");
  INFO(went_on.output);
  CHECK(went_on.exit_code == 0);
  CHECK(times_in(went_on.output, "'folder/*.txt' could not be looked at, and is tried again in 10 s: ") == 1);
  const Outcome closed = train({"readdir", "folder", EACCES, 1, 100}, "*er/*.txt");
  CHECK(closed.exit_code == 1);
  CHECK_THAT(closed.output, Contains("'*er/*.txt' cannot be listed; looked at " + (runs / "*er/*.txt") +
                                     " ([file] '*er/*.txt': cannot list 'folder': Permission denied)"));
}

TEST_CASE("a large file's time of change is asked for again where the system could not tell it") {
  const TinyRuns runs;
  std::ofstream(runs / "ids.bin").close();
  fs::resize_file(runs / "ids.bin", (256 << 20) + 2);  // a hole; smaller data are read as a whole
  const std::string train =
      "train tiny.yaml --training.steps 1 --training.dataset_path ids.bin --training.format tokens_u16";
  Outcome seen;
  int times = 0;
  for (int first = 5; times == 0 && first < 20; ++first) {  // the looks before are others
    fs::remove_all(runs / "out");
    seen = runs.run_shell(with_failing({"stat", "ids.bin", EIO, first}, train));
    times = times_in(seen.output, "the files of the data could not be read, and is tried again in 10 s: ");
  }
  INFO(seen.output);
  CHECK(times == 1);
  CHECK(seen.exit_code == 0);
}

TEST_CASE("a shard is written where a call fails for a moment, and not where it fails three times") {
  const TinyRuns runs;
  const std::string prepare =
      "data prepare text.txt --tokenizer " OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256 --output made";
  const std::string shard = "/tokens-00000.bin";
  CHECK(runs.run(prepare).exit_code == 0);
  const std::string expected = read_file(runs / ("made" + shard));
  // The tokens, the places of documents and the header are written, and flushed before the header and behind.
  for (const FailingCalls& f :
       {FailingCalls{"open", shard}, FailingCalls{"pwrite", shard, EIO, 1},
        FailingCalls{"pwrite", shard, EIO, 2}, FailingCalls{"pwrite", shard, ESTALE, 3},
        FailingCalls{"fsync", shard, EIO, 1}, FailingCalls{"fsync", shard, EIO, 2}}) {
    fs::remove_all(runs / "made");
    const Outcome made = runs.run_shell(with_failing(f, prepare));
    INFO(f.call << " " << f.first << "\n" << made.output);
    CHECK(made.exit_code == 0);
    CHECK(times_in(made.output, "tokens-00000.bin' could not be written, and is tried again in 10 s: ") == 1);
    CHECK(read_file(runs / ("made" + shard)) == expected);
  }
  for (const FailingCalls& f :
       {FailingCalls{"fsync", shard, EIO, 1, 3}, FailingCalls{"pwrite", shard, ENOSPC}}) {
    fs::remove_all(runs / "made");
    const Outcome ended = runs.run_shell(with_failing(f, prepare));
    INFO(ended.output);
    CHECK(ended.exit_code == 1);
    CHECK(times_in(ended.output, "is tried again") == (f.error == EIO ? 2 : 0));
    CHECK_FALSE(fs::exists(runs / "made"));
  }
  // Another that prepares the same would take a folder without a lock for a leftover.
  for (const int count : {1, 3}) {
    fs::remove_all(runs / "made");
    const Outcome made = runs.run_shell(with_failing({"flock", "/made.incomplete-", EIO, 1, count}, prepare));
    INFO(made.output);
    CHECK(made.exit_code == (count == 1 ? 0 : 1));
    CHECK(times_in(made.output, " could not be locked, and is tried again") == (count == 1 ? 1 : 2));
    CHECK(has(made.output, "ottava: [data prepare] cannot lock made.incomplete-") == (count == 3));
  }
}

TEST_CASE("a tokenizer is written where a call fails for a moment") {
  const TinyRuns runs;
  const std::string train = "tokenizer train text.txt --vocab-size 300 --output made";
  for (const char* call : {"mkdir", "open", "fsync", "rename"}) {
    fs::remove_all(runs / "made");
    const Outcome made = runs.run_shell(
        with_failing({call, std::string_view(call) == "mkdir" ? "made" : "made/tokenizer.json.tmp"}, train));
    INFO(call << "\n" << made.output);
    CHECK(made.exit_code == 0);
    CHECK(fs::exists(runs / "made/tokenizer.json"));
  }
}

TEST_CASE("what the system cannot look at is told with the system's reason") {
  const TinyRuns runs;
  const std::string assets = OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256";
  const auto ends = [&](const FailingCalls& f, const std::string& command) {
    const Outcome ended = runs.run_shell(with_failing(f, command));
    INFO(ended.output);
    CHECK(ended.exit_code == 1);
    return ended.output;
  };
  for (const int first : {1, 2}) {
    const std::string said = ends({"stat", "tokenizers/en-2256", EIO, first, 100}, "train tiny.yaml");
    CHECK_THAT(said, Contains("model.hf_assets_path: '" + assets + "' cannot be used: ") &&
                         Contains("cannot look at " + assets + ": Input/output error") &&
                         !Contains("is a file"));
    CHECK(times_in(said, "' could not be looked at, and is tried again in 10 s: ") == 2);
  }
  // Of several inputs on a file server that stays away one is waited for.
  const std::string both =
      ends({"stat", "text.txt", EIO, 1, 100},
           "train tiny.yaml --validation.enable true --validation.dataset_path text.txt");
  CHECK(times_in(both, "'text.txt' cannot be used: [file] cannot look at text.txt: Input/output error") == 2);
  CHECK(times_in(both, "is tried again in 10 s: ") == 2);
  CHECK_THAT(ends({"stat", "en-2256/tokenizer.json", EIO, 1, 100}, "tokenizer encode " + assets + " a"),
             Contains("[file] cannot look at " + assets + "/tokenizer.json: Input/output error"));
  fs::create_directories(runs / "iteration_2");
  runs.train("--training.steps 2");
  CHECK_THAT(ends({"readdir", "iteration_2"}, "trace iteration_2"),
             Contains("[file] cannot list iteration_2: Input/output error"));
  CHECK_THAT(ends({"stat", "out"}, "checkpoint inspect out"),
             Contains("[file] cannot look at out: Input/output error"));
}
