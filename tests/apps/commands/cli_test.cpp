#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "tests/apps/commands/workplace.h"

// The program as a process: what its commands print, and how they end.

using namespace ottava;
using namespace ottava::test;
namespace fs = std::filesystem;

namespace {

/// Those that have no subcommands, with the words that call them: "train", "bench train".
std::vector<std::string> every_command(const Workplace& here, const std::string& words = "") {
  std::istringstream lines(here.run(words + " --help").output);
  std::string line;
  while (std::getline(lines, line) && line != "Subcommands:") continue;
  std::vector<std::string> out;
  while (std::getline(lines, line) && line.starts_with("  ")) {
    const std::string name = line.substr(2, line.find(' ', 2) - 2);
    if (name.empty()) continue;  // the meaning of the one above goes on
    const auto below = every_command(here, words.empty() ? name : words + " " + name);
    out.insert(out.end(), below.begin(), below.end());
  }
  return out.empty() ? std::vector{words} : out;
}

}  // namespace

TEST_CASE("help is printed for every command, asked for in either way") {
  Workplace here;
  for (const char* command : {"", "train", "bench train", "tokenizer encode", "checkpoint diff"}) {
    INFO(command);
    const Outcome asked = here.run(std::string("help ") + command);
    CHECK(asked.exit_code == 0);
    CHECK(has(asked.output, "Usage: ottava"));
    CHECK(asked.output == here.run(std::string(command) + " --help").output);
  }
  CHECK(has(here.run("plan --help").output,
            "Usage: ottava plan [CONFIG] [OPTIONS] [--section.key VALUE ...]\n"));
  CHECK(has(here.run("launch --help").output, "Usage: ottava launch [OPTIONS] -- COMMAND ...\n"));
  CHECK(has(here.run("init --help").output, "one file, folder, glob in quotes or @FILE"));
}

TEST_CASE("help says what every option means") {
  constexpr size_t kMeanings = 30;  // where they begin, in the line of the option or in the next
  Workplace here;
  const std::vector<std::string> commands = every_command(here);
  CHECK(std::ranges::count(commands, "checkpoint diff") == 1);
  CHECK(commands.size() >= 21);
  for (const std::string& command : commands) {
    std::istringstream lines(here.run(command + " --help").output);
    int options = 0;
    for (std::string line, next; std::getline(lines, line);) {
      if (!line.starts_with("  ") || line[2] == ' ') continue;
      ++options;
      const bool is_beside = line.size() > kMeanings && line[kMeanings - 1] == ' ';
      INFO(command << ": " << line);
      CHECK((is_beside || (std::getline(lines, next) && next.starts_with(std::string(kMeanings, ' ')))));
    }
    CHECK(options > 0);
  }
}

TEST_CASE("every command prints what it should") {
  Workplace place;
  const Outcome trained = place.run(
      "train tiny.yaml --job.print_config true --job.save_config_file all.yaml --metrics.enable_tensorboard "
      "true");
  REQUIRE(trained.exit_code == 0);
  for (const char* line :
       {" - INFO - Starting job", "Memory plan: ", "total parameters", "Training starts at step 1",
        "step:  6  loss: ", "Saving the checkpoint of step 6", "Training completed"}) {
    INFO(line);
    CHECK(has(trained.output, line));
  }
  CHECK_FALSE(has(trained.output, "\033["));
  CHECK(has(read_file(place / "out/all.yaml"), "seq_len: 32"));
  CHECK(place.run("config out/all.yaml").output.starts_with(read_file(place / "out/all.yaml")));
  CHECK_FALSE(fs::is_empty(place / "out/tb"));

  const std::string step = "out/checkpoint/step-6";
  const Outcome text = place.run("generate --checkpoint " + step +
                                 " --prompt hello --max-tokens 8 --seed 3 --device cpu 2>speed");
  INFO(text.output);
  CHECK(text.exit_code == 0);
  CHECK(text.output.starts_with("hello"));
  CHECK(has(read_file(place / "speed"), "8 tokens after a prompt of "));
  CHECK(has(read_file(place / "speed"), " tokens/s\n"));
  for (const char* newest : {"out/checkpoint", "out"}) {
    CHECK(place
              .run(std::string("generate --checkpoint ") + newest +
                   " --prompt hello --max-tokens 8 --seed 3 --device cpu 2>speed")
              .output == text.output);
  }
  CHECK(place.run("generate --checkpoint absent --prompt hello").exit_code == 1);

  const Outcome fewest = place.run("plan tiny.yaml --parallelism.tensor_parallel_degree 2");
  CHECK(has(fewest.output, "Ranks: 2 (pp 1 x dp_replicate 1 x dp_shard 1 x cp 1 x tp 2 = 2)"));
  const Outcome plan = place.run("plan tiny.yaml --world-size 4");
  CHECK(plan.exit_code == 0);
  for (const char* part :
       {"Memory per rank: ", "Compute per rank and step", "Traffic per rank and step", "Ranks: 4"})
    CHECK(has(plan.output, part));
  const std::string mx = "plan tiny.yaml --training.device cuda --quantize.linear.float8.recipe_name mxfp8";
  CHECK(has(place.run(mx).output,
            "FP8 is off, because model.converters does not contain quantize.linear.float8"));
  const std::string mxfp8 = mx + " --model.converters '[quantize.linear.float8]'";
  const Outcome hopper = place.run(mxfp8 + " --compute-capability 90");
  CHECK(hopper.exit_code == 1);
  CHECK(has(hopper.output, "this GPU does not multiply recipe mxfp8"));
  CHECK(has(hopper.output,
            "; this plan is for compute capability 9.0: for another GPU set --device, or "
            "--compute-capability in its place"));
  const Outcome blackwell = place.run(mxfp8 + " --compute-capability 100");
  INFO(blackwell.output);
  CHECK(blackwell.exit_code == 0);
  CHECK(has(blackwell.output, "Precision of linear layers (compute capability 10.0):"));
  CHECK(has(place.run("plan tiny.yaml --training.device cpu --compute-capability 100").output,
            "[plan] --compute-capability is for GPUs, but this plan is for a CPU"));
  const Outcome bench = place.run("bench train tiny.yaml --steps 1");
  INFO(bench.output);
  CHECK(bench.exit_code == 0);
  for (const char* part : {"tokens/s: ", "utilization: ", "memory: plan "}) CHECK(has(bench.output, part));

  const std::string tokenizer = OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256";
  const std::string ids = place.run("tokenizer encode " + tokenizer + " 'some words'").output;
  CHECK(place.run("tokenizer decode " + tokenizer + " " + ids.substr(0, ids.find('\n'))).output ==
        "some words");
  CHECK(place.run("data prepare text.txt --tokenizer " + tokenizer + " --output shards").exit_code == 0);
  CHECK(place.run("data inspect shards --verify").exit_code == 0);
  CHECK(
      place.run("train tiny.yaml --training.dataset_path shards --job.dump_folder sharded --training.steps 1")
          .exit_code == 0);
  CHECK(place.run("checkpoint verify " + step).exit_code == 0);
  CHECK(has(place.run("checkpoint inspect " + step).output, "step"));
  CHECK(place.run("checkpoint diff " + step + " " + step).exit_code == 0);
  CHECK(place.run("checkpoint diff out/checkpoint/step-3 " + step).exit_code == 1);
  CHECK(place.run("--version").exit_code == 0);
  CHECK(place.run("nonsense").exit_code != 0);
}

TEST_CASE("a run without standard streams keeps its files to itself") {
  const Workplace place;
  const Outcome out = place.run("train tiny.yaml <&- >&- 2>&-");
  CHECK(out.exit_code == 0);
  CHECK(logged(place / "out", "lr").size() == 6);
  std::istringstream lines(read_file(place / "out/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) CHECK_NOTHROW(Json::parse(line, "metrics.jsonl"));
  const std::string lock = read_file(place / "out/.lock");
  CHECK(lock.starts_with("process "));
  CHECK_FALSE(has(lock, "\n"));
}

TEST_CASE("what cannot be printed is an error, but for a run that has its files") {
  const Workplace place;
  REQUIRE(place.run("train tiny.yaml").exit_code == 0);
  for (const char* command :
       {"config tiny.yaml", "config --schema", "plan tiny.yaml", "checkpoint inspect out", "plan --help",
        "train --help", "launch -h", "--version"}) {
    INFO(command);
    const Outcome out = place.run(std::string(command) + " >/dev/full");
    INFO(out.output);
    CHECK(out.exit_code == 1);
    CHECK(has(out.output, "ottava: [output] cannot write to standard output: No space left on device\n"));
  }
  const Outcome run = place.run("train tiny.yaml --job.dump_folder other >/dev/full");
  CHECK(run.exit_code == 0);
  CHECK(run.output ==
        "ottava: WARNING: lines of the log cannot be written (No space left on device): what does not fit is "
        "missing\n");
}

TEST_CASE("data inspect marks what the loss counts by colour on a terminal that is to have any") {
  Workplace place;
  place.write("pairs.jsonl", "{\"prompt\": \"one\", \"completion\": \" two\"}\n");
  const auto on_terminal = [&](const std::string& environment) {
    return run_command("cd " + (place / "") + " && env -u NO_COLOR TERM=xterm " + environment +
                       " script -qec '" OTTAVA
                       " data inspect pairs.jsonl --format prompt_completion --tokenizer " OTTAVA_SOURCE_DIR
                       "/configs/tokenizers/en-2256' /dev/null")
        .output;
  };
  CHECK(has(on_terminal(""), "\033[32m two"));
  for (const char* plain : {"NO_COLOR=1", "TERM=dumb"}) CHECK(has(on_terminal(plain), "[[ two"));
}

TEST_CASE("commands that take text read a pipe, and say so where there is none") {
  Workplace place;
  const std::string tokenizer = OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256";
  auto shell = [&](const std::string& line) {
    return run_command("cd " + (place / "") + " && O=" OTTAVA " T=" + tokenizer + "; " + line).output;
  };
  CHECK(shell("printf 'some words' | $O tokenizer encode $T") ==
        shell("$O tokenizer encode $T 'some words'"));
  CHECK(shell("printf 'a\\nb\\n' | $O tokenizer encode $T | $O tokenizer decode $T") == "a\nb\n");
  CHECK(has(shell("script -qec \"$O tokenizer encode $T\" /dev/null"),
            "[tokenizer encode] no input is given: "));

  REQUIRE(place.run("train tiny.yaml").exit_code == 0);
  const std::string generate = "$O generate --checkpoint out --max-tokens 40 --device cpu 2>/dev/null ";
  const std::string text = shell(generate + "--prompt 'A cat'");
  CHECK(text.starts_with("A cat"));
  CHECK(shell("echo 'A cat' | " + generate) == text);
  CHECK(shell("printf 'A cat\\r\\n' | " + generate) == text);
  CHECK(shell("printf '\\357\\273\\277A cat\\n' > cat.txt; " + generate + "--prompt-file cat.txt") == text);

  const std::string samples = shell(generate + "--prompt 'A cat' --samples 2");
  CHECK(samples.starts_with("==> sample 1 of 2 <==\n" + text + "\n==> sample 2 of 2 <==\nA cat"));
  CHECK_FALSE(samples.ends_with("==\n" + text));

  const std::string likeliest = shell(generate + "--prompt 'A cat' --temperature 0");
  CHECK(likeliest != text);
  for (const char* of_one : {"--top-k 1", "--top-p 1e-9", "--min-p 1"})
    CHECK(shell(generate + "--prompt 'A cat' --seed 1 " + of_one) == likeliest);
  CHECK(shell(generate + "--prompt 'A cat' --seed 1") != text);

  // Whatever the text, generation can be told to end before one of its letters.
  const std::string added = text.substr(5, text.size() - 6);
  const size_t letter = added.find_first_of("abcdefghijklmnopqrstuvwxyz", 1);
  REQUIRE(letter != std::string::npos);
  const std::string stop = added.substr(letter, 1);
  CHECK(shell(generate + "--prompt 'A cat' --stop 'never said' 'nor this'") == text);
  CHECK(shell(generate + "--prompt 'A cat' --stop 'never said' --stop " + stop) ==
        "A cat" + added.substr(0, added.find(stop)) + "\n");
  for (const char* penalty : {"0", "1e-300", "-1", "1e+300"})
    CHECK(has(place.run(std::string("generate --checkpoint out --repetition-penalty ") + penalty).output,
              std::string("--repetition-penalty: expected 0.01 to 100, got ") + penalty));
  for (const char* penalty : {"0.01", "100"})
    CHECK_FALSE(has(shell("$O generate --checkpoint out --device cpu --prompt A --repetition-penalty " +
                          std::string(penalty)),
                    "ottava: "));
}

TEST_CASE("on a terminal no line of a help is longer than that, and its words are those of a pipe") {
  Workplace here;
  const auto words = [](const std::string& text) {
    std::istringstream in(text);
    std::vector<std::string> out;
    for (std::string word; in >> word;) out.push_back(word);
    return out;
  };
  for (const std::string& command : every_command(here)) {
    for (const size_t columns : {80, 120}) {
      INFO(command << " in " << columns << " columns");
      const std::string shown = here.run_shell("script -qec 'stty cols " + std::to_string(columns) +
                                               "; " OTTAVA " " + command + " --help' /dev/null < /dev/null")
                                    .output;
      CHECK(words(shown) == words(here.run(command + " --help").output));
      std::istringstream lines(shown);
      for (std::string line; std::getline(lines, line);) CHECK(line.size() <= columns + 1);  // with its CR
    }
  }
}

TEST_CASE("small mistakes are answered with what to do") {
  Workplace place;
  place.write("tab.yaml", "training:\n\tsteps: 5\n");
  CHECK(has(place.run("train tab.yaml").output, "tab.yaml:2:7: not valid YAML: a tab indents this line"));
  CHECK(has(place.run("train .").output, "[config] . is a folder, expected a file: .yaml, .yml or .toml"));
  CHECK(has(place.run("train --training.steps 3 tiny.yaml").output,
            "got 'tiny.yaml'; give the configuration file first, before all options"));
  CHECK(has(place.run("train tiny.yaml --model.dim null --model.flavor 9B").output, "405B, or hf"));
  const Outcome run = place.run("train tiny.yaml --lr_scheduler.warmup_steps 6");
  CHECK(run.exit_code == 0);
  CHECK(has(run.output, "lr_scheduler.warmup_steps 6 cover the whole schedule of 6 steps"));
  CHECK(has(place.run("checkpoint inspect out").output, "out/checkpoint/step-6\n"));
  CHECK(has(place.run("train tiny.yaml --training.steps 9 --checkpoint.load_step 5").output,
            "step-5 does not exist: out/checkpoint has steps 3, 6"));
}

TEST_CASE("paths are relative to the working directory; inputs that are not there stand beside the file") {
  Workplace place;
  fs::create_directories(place / "elsewhere");
  const Outcome out = run_command("cd " + (place / "elsewhere") +
                                  " && " OTTAVA " train ../tiny.yaml --training.dataset_path 'te?t.txt'");
  INFO(out.output);
  CHECK(out.exit_code == 0);
  CHECK(fs::exists(place / "elsewhere/out/checkpoint/step-6"));
  CHECK_FALSE(fs::exists(place / "out"));
  place.write("elsewhere/text.txt", "too short");
  CHECK(has(run_command("cd " + (place / "elsewhere") +
                        " && " OTTAVA " train ../tiny.yaml --job.dump_folder other 2>&1")
                .output,
            "the dataset is too small"));
}

TEST_CASE("a program that cannot start again says so, and does its work") {
  const Workplace here;
  const std::string deleted = "cp " OTTAVA
                              " copy && exec 9< copy && rm copy && env -u GOMP_SPINCOUNT -u OMP_WAIT_POLICY "
                              "/proc/self/fd/9 config tiny.yaml";
  const Outcome out = run_command("cd " + (here / ".") + " && " + deleted);
  INFO(out.output);
  CHECK(out.exit_code == 0);
  CHECK(has(out.output, "cannot start again with GOMP_SPINCOUNT=5000 (No such file or directory)"));
  CHECK(has(out.output, "dump_folder"));
}

TEST_CASE("no output of a command replaces what it reads, or what a run keeps") {
  Workplace place;
  CHECK(place
            .run("train tiny.yaml --training.steps 4 --profiling.enable_profiling true "
                 "--profiling.profile_freq 4")
            .exit_code == 0);
  place.write("items.jsonl", "{\"query\": \"A cat\", \"choices\": [\" is\", \" runs\"], \"gold\": 0}\n");
  fs::create_symlink(place / "out/metrics.jsonl", place / "link.html");
  const std::string trace = "out/profile_traces/iteration_4",
                    reads = "this command reads it; name another file",
                    keeps = "it is a file of the run or the checkpoint in that folder";
  const std::vector<std::array<std::string, 3>> refused{
      {"report out --output ", "out/metrics.jsonl", reads},
      {"report out --output ", "link.html", reads},
      {"report out --output ", "out/events.jsonl", keeps},
      {"report out --output ", "out/decisions.json", keeps},
      {"trace " + trace + " --merge ", trace + "/rank0_trace.json.gz", reads},
      {"plan tiny.yaml --json ", "tiny.yaml", reads},
      {"plan tiny.yaml --json ", "link.html", keeps},
      {"plan tiny.yaml --trace ", "out/metrics.rank3.jsonl", keeps},
      {"bench kernels tiny.yaml --count --json ", "tiny.yaml", reads},
      {"eval out --tasks items.jsonl --json ", "items.jsonl", reads},
      {"eval out --tasks items.jsonl --json ", "out/checkpoint/step-4/model.safetensors", keeps},
      {"eval out --tasks items.jsonl --json ", "out/checkpoint/step-4/config.json", keeps}};
  for (const auto& [command, file, why] : refused) {
    INFO(command << file);
    const bool is_there = fs::exists(place / file);
    const std::string before = is_there ? read_file(place / file) : "";
    const Outcome out = place.run(command + file);
    INFO(out.output);
    CHECK(out.exit_code == 1);
    CHECK(has(out.output, "cannot write " + file + ": " + why));
    CHECK(fs::exists(place / file) == is_there);
    if (is_there) CHECK(read_file(place / file) == before);
  }
  // What a command wrote, it writes again, also beside a run.
  for (const char* command : {"report out --output out/report.html", "plan tiny.yaml --json out/plan.json",
                              "eval out --tasks items.jsonl --json out/scores.json --device cpu",
                              "plan tiny.yaml --json manifest.json", "plan tiny.yaml --json config.json"}) {
    INFO(command);
    for (int i = 0; i < 2; ++i) CHECK(place.run(command).exit_code == 0);
  }
}

TEST_CASE("an error of all ranks is said once, however long, where each rank would say it") {
  const Workplace place;
  const std::string unknown(40'000, 'x');  // more than a pipe holds, twice
  const Outcome all =
      place.run_shell("exec " OTTAVA " launch -n 2 -- train tiny.yaml --model." + unknown + " 3");
  CHECK(all.exit_code == 1);
  CHECK(all.output.find(unknown) == all.output.rfind(unknown));
  CHECK(has(all.output, "ottava launch: both ranks ended with the error above\n"));
  const Outcome silent = place.run_shell("exec " OTTAVA " launch -n 2 -- config none.yaml 2>/dev/null");
  CHECK(silent.exit_code == 1);
  CHECK(silent.output.empty());
}
