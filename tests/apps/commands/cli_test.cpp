#include <signal.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "core/io/file.h"
#include "tests/support/catch.h"
#include "tests/support/launched.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_training.h"

// The program as a process: what it prints, how it ends, what it leaves behind.

using namespace ottava;
using namespace ottava::test;
namespace fs = std::filesystem;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A folder with text and a small experiment, in which the program is started.
class Workplace {
 public:
  Workplace() {
    write("text.txt", generated_text(200));
    write("tiny.yaml",
          "model: {dim: 32, n_layers: 2, n_heads: 2, n_kv_heads: 1, ffn_dim: 48, "
          "hf_assets_path: " OTTAVA_SOURCE_DIR
          "/configs/tokenizers/en-2256}\n"
          "training: {dataset_path: text.txt, seq_len: 32, local_batch_size: 2, steps: 6, threads: 1, "
          "dataloader: {num_workers: 1}}\n"
          "job: {dump_folder: out}\n"
          "metrics: {log_freq: 1, peak_tflops_bf16: 1}\n"
          "checkpoint: {enable: true, interval: 3, last_save_model_only: false}\n");
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  std::string operator/(const std::string& name) const { return folder_ / name; }
  Outcome run(const std::string& arguments, const std::function<void(int)>& meanwhile = {}) const {
    return run_command("cd " + folder_.path() + " && exec " OTTAVA " " + arguments, meanwhile);
  }
  /// One clear error before training, and nothing half-written.
  void refuses(const std::string& arguments, const std::vector<std::string>& parts) const {
    INFO("train tiny.yaml " << arguments);
    fs::remove_all(folder_ / "out");
    const Outcome out = run("train tiny.yaml " + arguments);
    INFO(out.output);
    CHECK(out.exit_code == 1);
    for (const std::string& part : parts) {
      INFO(part);
      CHECK(has(out.output, part));
    }
    const size_t error = out.output.find("ottava: [");
    CHECK(error != std::string::npos);
    CHECK(out.output.find("ottava: [", error + 1) == std::string::npos);
    CHECK_FALSE(has(out.output, "step:  1"));
    if (!fs::is_directory(folder_ / "out")) return;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / "out")) {
      INFO(entry.path().string());
      CHECK(entry.path().filename().string().find("step-") == std::string::npos);
      CHECK(entry.path().extension() != ".tmp");
    }
  }

 private:
  TemporaryFolder folder_;
};

std::vector<std::string> steps_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE("SIGTERM, SIGUSR1 and SIGINT save after the current step, end with 0, and the next start goes on") {
  Workplace place;
  for (int signal : {SIGTERM, SIGUSR1, SIGINT}) {
    INFO(strsignal(signal));
    const std::string out = "out" + std::to_string(signal);
    const std::string arguments =
        "train tiny.yaml --training.steps 1000000 --checkpoint.interval 1000000 --job.dump_folder " + out;
    auto reached = [&](size_t lines) { return logged(place / out, "lr").size() >= lines; };
    const Outcome stopped = place.run(arguments, [&](int group) {
      CHECK(wait_until(100, [&] { return reached(5); }));
      ::kill(-group, signal);
    });
    INFO(stopped.output);
    CHECK(stopped.exit_code == 0);
    CHECK(has(stopped.output, "; the same command continues from here"));
    const std::vector<std::string> steps = steps_in(place / (out + "/checkpoint"));
    REQUIRE(steps.size() == 1);
    const size_t step = logged(place / out, "lr").size();
    CHECK(steps[0] == "step-" + std::to_string(step));
    const Outcome again = place.run("train tiny.yaml --checkpoint.interval 1000000 --job.dump_folder " + out +
                                    " --training.steps " + std::to_string(step + 2));
    INFO(again.output);
    CHECK(again.exit_code == 0);
    CHECK(has(again.output, "Training starts at step " + std::to_string(step + 1)));
    CHECK(logged(place / out, "lr").size() == step + 2);
  }
}

TEST_CASE("what is wrong with a configuration is said at once, with the place and the arithmetic") {
  Workplace place;
  place.refuses("--training.stpes 5", {"unknown option --training.stpes; did you mean --training.steps?"});
  place.refuses("--training.steps many", {"training.steps: expected an integer"});
  place.refuses("--training.steps 0 --training.seq_len x",
                {"2 problems", "training.steps", "training.seq_len"});
  place.refuses("--training.local_batch_size 8 --training.global_batch_size 20",
                {"20 is not a multiple of local_batch_size 8 (remainder 4)"});
  place.refuses("--model.max_seq_len 16", {"32 tokens exceed model.max_seq_len 16"});
  place.refuses("--model.n_heads 3", {"dim 32 is not a multiple of n_heads 3"});
  place.refuses("--model.n_heads 4 --model.n_kv_heads 3",
                {"n_heads 4 is not a multiple of n_kv_heads 3 (remainder 1)"});
  place.refuses("--model.vocab_size 100", {"vocab_size 100 is smaller than the tokenizer's 2256"});
  place.refuses("--model.flavor 9B", {"9B", "debugmodel"});
  place.refuses("--parallelism.tensor_parallel_degree 2", {"tp 2"});
  place.refuses("--quantize.linear.float8.recipe_name fp4",
                {"fp4", "tensorwise, tensorwise_with_gw_hp, delayed"});
  place.refuses("--optimizer.implementation fused --training.dtype bfloat16",
                {"training.dtype: bfloat16 is refused: "});
  place.refuses("stray", {"expected --section.key value, got 'stray'"});
  place.write("broken.yaml", "training: {steps: 5\n");
  CHECK(has(place.run("train broken.yaml").output, "broken.yaml:"));
  CHECK(has(place.run("train absent.yaml").output, "absent.yaml"));
  CHECK(has(place.run("train --training.stpes 4").output, "unknown option --training.stpes"));
}

TEST_CASE("a command line that is no command is refused with what may stand there") {
  Workplace here;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "ottava: [command line] ottava needs a subcommand: init, train, plan, bench"},
      {"trian tiny.yaml", "ottava has no subcommand 'trian': expected init, train, plan, bench"},
      {"trian tiny.yaml", "did you mean train?"},
      {"data nothing", "ottava: [command line] data has no subcommand 'nothing': expected prepare"},
      {"launch -n 2", "a command after -- is required; see `ottava launch --help`"},
      {"launch -n -1 -- train tiny.yaml", "[launch] the number of ranks is -1, expected at least 1"},
      {"launch -n 2 --only-rank 1,x -- train tiny.yaml",
       "--only-rank is '1,x', expected ranks with commas between"},
      {"launch -n 2 --nnodes 2 -- train tiny.yaml", "nothing says where rank 0 is"},
      {"plan tiny.yaml --world-size 0", "[command line] --world-size: Value 0 not in range"},
      {"tokenizer train text.txt", "see `ottava tokenizer train --help`"},
      {"generate --checkpoint out --shout", "see `ottava generate --help`"}};
  for (const auto& [arguments, part] : cases) {
    const Outcome out = here.run(arguments);
    INFO(arguments << "\n" << out.output);
    CHECK(out.exit_code == 1);
    CHECK(has(out.output, part));
  }
}

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
}

TEST_CASE("help says what every option means") {
  constexpr size_t kMeanings = 30;  // where they begin, in the line of the option or in the next
  Workplace here;
  for (const char* command : {"train",
                              "plan",
                              "bench train",
                              "bench kernels",
                              "bench data",
                              "trace",
                              "report",
                              "launch",
                              "config",
                              "init",
                              "tokenizer train",
                              "tokenizer encode",
                              "tokenizer decode",
                              "tokenizer inspect",
                              "data prepare",
                              "data inspect",
                              "generate",
                              "eval",
                              "checkpoint inspect",
                              "checkpoint verify",
                              "checkpoint diff"}) {
    std::istringstream lines(here.run(std::string(command) + " --help").output);
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

TEST_CASE("text, tokenizer and weights that are missing or damaged are named before training") {
  Workplace place;
  place.refuses("--training.dataset_path absent.txt", {"training.dataset_path: 'absent.txt' does not exist"});
  place.refuses("--training.dataset_path 'absent*.txt'", {"absent*.txt"});
  place.write("empty.txt", "");
  place.refuses("--training.dataset_path empty.txt", {"the dataset is empty: 1 file in", "empty.txt'"});
  place.write("short.txt", "too short");
  place.refuses("--training.dataset_path short.txt --training.seq_len 512",
                {"the dataset is too small", "short.txt'", "seq_len"});
  place.write("bad.jsonl", "{\"text\": \"fine\"}\n{\"text\": 5}\n");
  place.refuses("--training.dataset_path bad.jsonl", {"bad.jsonl"});

  place.refuses("--model.hf_assets_path absent", {"model.hf_assets_path: 'absent' does not exist"});
  fs::create_directory(place / "assets");
  place.refuses("--model.hf_assets_path assets", {"tokenizer.json"});
  place.write("assets/tokenizer.json", "{\"model\": {\"type\": \"BPE\", ");
  place.refuses("--model.hf_assets_path assets", {"tokenizer.json"});
  place.refuses(
      "--model.hf_assets_path short.txt",
      {"model.hf_assets_path: 'short.txt' is a file, expected the folder that holds tokenizer.json"});

  REQUIRE(place.run("train tiny.yaml --job.dump_folder good").exit_code == 0);
  const std::string good = place / "good/checkpoint/step-6";
  place.refuses("--checkpoint.initial_load_path absent",
                {"checkpoint.initial_load_path: 'absent' does not exist"});
  auto damaged = [&](const std::string& name, auto&& damage) {
    fs::remove_all(place / "bad");
    fs::copy(good, place / "bad", fs::copy_options::recursive);
    damage(place / ("bad/" + name));
  };
  auto overwrite = [](const std::string& path, int64_t at, const std::string& bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at);
    file << bytes;
  };
  damaged("model.safetensors",
          [](const std::string& path) { fs::resize_file(path, fs::file_size(path) - 100); });
  place.refuses("--checkpoint.initial_load_path bad", {"model.safetensors"});
  damaged("model.safetensors", [&](const std::string& path) { overwrite(path, 0, std::string(8, '\x7f')); });
  place.refuses("--checkpoint.initial_load_path bad", {"model.safetensors"});
  damaged("model.safetensors", [&](const std::string& path) {
    overwrite(path, static_cast<int64_t>(fs::file_size(path)) - 4, std::string("\0\0\xc0\x7f", 4));
  });
  place.refuses("--checkpoint.initial_load_path bad", {"model.safetensors", "not finite"});
  damaged("model.safetensors", [](const std::string& path) { fs::remove(path); });
  place.refuses("--checkpoint.initial_load_path bad", {"model.safetensors"});
  place.refuses("--checkpoint.initial_load_path " + good + " --model.dim 64",
                {"is not of this model", "[2256, 32], expected [2256, 64]"});

  place.refuses("--model.flavor hf --model.hf_assets_path " + good + " --training.seq_len 70000",
                {"70000 tokens are longer than max_position_embeddings 32"});

  // The run's own checkpoints: all broken, so it says so instead of starting over.
  for (const std::string& step : steps_in(place / "good/checkpoint"))
    fs::resize_file(place / ("good/checkpoint/" + step + "/model.safetensors"), 1000);
  const Outcome broken = place.run("train tiny.yaml --job.dump_folder good --training.steps 9");
  CHECK(broken.exit_code == 1);
  CHECK(has(broken.output, "are broken; move them away to start over"));
}

TEST_CASE(
    "a folder that cannot be written or a full disk ends the run with a reason and leaves what was there") {
  Workplace place;
  place.write("file", "");
  place.refuses("--job.dump_folder file", {"[job.dump_folder] cannot write into file: Not a directory"});
  place.refuses("--job.dump_folder file/below",
                {"[job.dump_folder] cannot write into file/below: Not a directory"});
  place.refuses("--checkpoint.folder ../text.txt", {"text.txt"});

  // A limit on file size stands for the full disk: small files fit, a tensor file does not.
  const std::string limited =
      "ulimit -f 400; cd " + (place / "") + " && trap '' XFSZ; exec " OTTAVA " train tiny.yaml";
  REQUIRE(place.run("train tiny.yaml --training.steps 3").exit_code == 0);
  const Outcome full = run_command(limited);
  INFO(full.output);
  CHECK(full.exit_code == 1);
  CHECK(has(full.output, "ottava: ["));
  const std::vector<std::string> left = steps_in(place / "out/checkpoint");
  CHECK(std::find(left.begin(), left.end(), "step-3") != left.end());
  CHECK(std::find(left.begin(), left.end(), "step-6") == left.end());
  const Outcome again = place.run("train tiny.yaml");
  CHECK(again.exit_code == 0);
  CHECK(has(again.output, "Training starts at step 4"));
}

TEST_CASE("on a terminal lines are coloured and a progress line says what is left, unless asked otherwise") {
  Workplace place;
  // util-linux's script gives a pseudo-terminal.
  auto on_terminal = [&](const std::string& environment, const std::string& options) {
    const Outcome out = run_command("cd " + (place / "") + " && env -u NO_COLOR TERM=xterm " + environment +
                                    " script -qec '" OTTAVA
                                    " train tiny.yaml --checkpoint.enable false --training.steps 40 " +
                                    options + "' /dev/null");
    INFO(out.output);
    CHECK(out.exit_code == 0);
    CHECK(has(out.output, "loss: "));
    return out.output;
  };
  const std::string red = "\033[31mstep: ", progress = "\r\033[Kstep ";
  const std::string usual = on_terminal("", "");
  CHECK(has(usual, red));
  CHECK(has(usual, progress));
  CHECK(has(usual, " s/step, 0m 0"));
  CHECK(has(usual, " left\r\033[K"));  // cleared before the next line
  CHECK(has(on_terminal("NO_COLOR=", ""), red));
  const std::string plain = on_terminal("NO_COLOR=1", "");
  CHECK_FALSE(has(plain, red));
  CHECK(has(plain, progress));
  CHECK_FALSE(has(on_terminal("", "--metrics.disable_color_printing true"), red));
  CHECK_FALSE(has(on_terminal("TERM=dumb", ""), "\033"));
  CHECK_FALSE(has(place.run("train tiny.yaml --checkpoint.enable false").output, "\033"));
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
  CHECK(has(place.run(mx).output, "FP8 is off, since model.converters does not hold quantize.linear.float8"));
  const std::string mxfp8 = mx + " --model.converters '[quantize.linear.float8]'";
  const Outcome hopper = place.run(mxfp8 + " --compute-capability 90");
  CHECK(hopper.exit_code == 1);
  CHECK(has(hopper.output, "this GPU does not multiply recipe mxfp8"));
  CHECK(has(hopper.output, "; this plan is for compute capability 9.0, --compute-capability says another"));
  const Outcome blackwell = place.run(mxfp8 + " --compute-capability 100");
  INFO(blackwell.output);
  CHECK(blackwell.exit_code == 0);
  CHECK(has(blackwell.output, "Precision of linear layers (compute capability 10.0):"));
  CHECK(has(place.run("plan tiny.yaml --training.device cpu --compute-capability 100").output,
            "[plan] --compute-capability is of GPUs, and training.device is cpu"));
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
  for (const char* command : {"config tiny.yaml", "config --schema", "plan tiny.yaml",
                              "checkpoint inspect out", "plan --help", "--version"}) {
    INFO(command);
    const Outcome out = place.run(std::string(command) + " >/dev/full");
    INFO(out.output);
    CHECK(out.exit_code == 1);
    CHECK(has(out.output, "ottava: [output] cannot write to standard output: No space left on device\n"));
  }
  CHECK(place.run("train tiny.yaml --job.dump_folder other >/dev/full").exit_code == 0);
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
            "[tokenizer encode] nothing is given: "));

  REQUIRE(place.run("train tiny.yaml").exit_code == 0);
  const std::string generate = "$O generate --checkpoint out --max-tokens 40 --device cpu 2>/dev/null ";
  const std::string text = shell(generate + "--prompt 'A cat'");
  CHECK(text.starts_with("A cat"));
  CHECK(shell("echo 'A cat' | " + generate) == text);
  CHECK(shell("printf 'A cat\\r\\n' | " + generate) == text);
  CHECK(shell("echo 'A cat' > cat.txt; " + generate + "--prompt-file cat.txt") == text);

  const std::string samples = shell(generate + "--prompt 'A cat' --samples 2");
  CHECK(samples.starts_with("==> sample 1 of 2 <==\n" + text + "\n==> sample 2 of 2 <==\nA cat"));
  CHECK_FALSE(samples.ends_with("==\n" + text));

  // Whatever it says, it may be told to end before a letter of it.
  const std::string added = text.substr(5, text.size() - 6);
  const size_t letter = added.find_first_of("abcdefghijklmnopqrstuvwxyz", 1);
  REQUIRE(letter != std::string::npos);
  const std::string stop = added.substr(letter, 1);
  CHECK(shell(generate + "--prompt 'A cat' --stop 'never said' 'nor this'") == text);
  CHECK(shell(generate + "--prompt 'A cat' --stop 'never said' --stop " + stop) ==
        "A cat" + added.substr(0, added.find(stop)) + "\n");
  CHECK(has(place.run("generate --checkpoint out --repetition-penalty 0").output,
            "--repetition-penalty is 0, expected a number above 0 (1: none)"));
}

TEST_CASE("what is odd about data is said before the first step") {
  Workplace place;
  auto start_on = [&](const std::string& data, const std::string& more = "") {
    const Outcome out = place.run(
        "train tiny.yaml --checkpoint.enable false --training.steps 1 "
        "--training.dataset_path " +
        data + more);
    INFO(out.output);
    CHECK(out.exit_code == 0);
    return out.output.substr(0, out.output.find("step:  1"));
  };
  fs::create_directories(place / "many");
  place.write("many/latin.txt", generated_text(50) + "caf\xe9 au lait\n");
  for (const char* name : {"many/README.md", "many/notes.csv", "many/LICENSE"}) place.write(name, "not data");
  const std::string folder = start_on("many");
  CHECK(has(folder,
            "data: of folder 'many' 1 file taken, left out: 'many/LICENSE', 'many/README.md', "
            "'many/notes.csv'"));
  CHECK(has(folder, "1 with bytes that are not UTF-8, the first "));
  CHECK(has(folder, "many/latin.txt', document at byte "));
  CHECK(has(folder, "Data: 'many': 1 file, "));

  std::string lines;
  for (int i = 0; i < 200; ++i)
    lines += R"({"text": "a line that is long enough to be trained on"})"
             "\n";
  place.write("without_extension", lines);
  const std::string found = start_on("without_extension");
  CHECK(has(found, "data: 'without_extension' is taken as JSON lines, as its first line is an object"));
  CHECK(has(found, "; each line of JSON is a document (\"text\")"));

  std::string ids;
  for (int i = 0; i < 4000; ++i) ids += std::string{static_cast<char>(i % 251), static_cast<char>(i % 8)};
  place.write("train.bin", ids);
  CHECK(has(place.run("train tiny.yaml --training.dataset_path train.bin").output,
            "set training.format: tokens_u16 or tokens_u32"));
  CHECK(
      has(start_on("train.bin", " --training.format tokens_u16"), "Data: 'train.bin': 1 file, 7.8 KiB of "));
  place.write("text.parquet", std::string("PAR1\0\0", 6));
  CHECK(has(place.run("train tiny.yaml --training.dataset_path text.parquet").output,
            "'text.parquet' is not text: byte 4 is 0"));
}

TEST_CASE("threads far above what the machine has are told") {
  const Workplace place;
  const unsigned cpus = std::thread::hardware_concurrency();
  const auto run = [&](unsigned threads) {
    return place
        .run("train tiny.yaml --checkpoint.enable false --training.steps 1 --training.threads " +
             std::to_string(threads))
        .output;
  };
  CHECK(has(run(2 * cpus + 1), "training.threads " + std::to_string(2 * cpus + 1) + " is far above the "));
  CHECK_FALSE(has(run(1), "is far above"));
}

TEST_CASE("small mistakes are answered with what to do") {
  Workplace place;
  place.write("tab.yaml", "training:\n\tsteps: 5\n");
  CHECK(has(place.run("train tab.yaml").output, "tab.yaml:2:7: not valid YAML: a tab indents this line"));
  CHECK(has(place.run("train .").output, "[config] . is a folder, expected a file: .yaml, .yml or .toml"));
  CHECK(has(place.run("train --training.steps 3 tiny.yaml").output,
            "got 'tiny.yaml'; the configuration file comes first, before all options"));
  CHECK(has(place.run("train tiny.yaml --model.dim null --model.flavor 9B").output, "405B, or hf"));
  const Outcome run = place.run("train tiny.yaml --lr_scheduler.warmup_steps 6");
  CHECK(run.exit_code == 0);
  CHECK(has(run.output, "lr_scheduler.warmup_steps 6 reach over the whole schedule of 6 steps"));
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

TEST_CASE("a TorchTitan file trains with text and tokenizer given") {
  Workplace place;
  const Outcome out = place.run("train " OTTAVA_SOURCE_DIR
                                "/tests/apps/config/torchtitan/small.toml"
                                " --training.dataset_path text.txt --model.hf_assets_path " OTTAVA_SOURCE_DIR
                                "/configs/tokenizers/en-2256 --training.steps 2 --training.local_batch_size "
                                "1 --training.seq_len 256 --metrics.peak_tflops_bf16 1");
  INFO(out.output);
  CHECK(out.exit_code == 0);
  CHECK(has(out.output, "step:  2  loss: "));
  CHECK(has(out.output, "no meaning here"));
}

TEST_CASE("each of the files with TorchTitan's keys says in one sentence what it needs") {
  Workplace place;
  for (const char* file : {"small", "8b", "70b", "405b"}) {
    const Outcome out =
        place.run(fmt::format("train " OTTAVA_SOURCE_DIR "/tests/apps/config/torchtitan/{}.toml", file));
    INFO(out.output);
    CHECK(out.exit_code == 1);
    CHECK(has(out.output, fmt::format("{}.toml, which trains once it is given --model.hf_assets_path "
                                      "FOLDER_WITH_TOKENIZER --training.dataset_path TEXT",
                                      file)));
  }
}

TEST_CASE("without a library for MPI a rank says where it looked") {
  const Workplace place;
  const Outcome out =
      run_command("cd " + (place / "") +
                  " && OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 "
                  "OTTAVA_MPI_LIBRARY=/nowhere/libottava_mpi.so exec " OTTAVA " train tiny.yaml");
  INFO(out.output);
  CHECK(out.exit_code == 1);
  CHECK(has(
      out.output,
      "[mpi] there is no library for MPI (tried /nowhere/libottava_mpi.so): compile it with build_mpi.sh"));
}

TEST_CASE("threads spin briefly unless the user says how they wait") {
  auto settings = [](const std::string& environment) {
    return run_command("env -u GOMP_SPINCOUNT -u OMP_WAIT_POLICY OMP_DISPLAY_ENV=verbose " + environment +
                       " " OTTAVA " --version")
        .output;
  };
  CHECK(has(settings(""), "GOMP_SPINCOUNT = '5000'"));
  CHECK_FALSE(has(settings("OMP_WAIT_POLICY=passive"), "GOMP_SPINCOUNT = '5000'"));
  CHECK(has(settings("GOMP_SPINCOUNT=77"), "GOMP_SPINCOUNT = '77'"));
  CHECK_FALSE(has(settings("GOMP_SPINCOUNT=77"), "GOMP_SPINCOUNT = '5000'"));
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
