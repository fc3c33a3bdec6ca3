#include <signal.h>

#include <filesystem>
#include <fstream>

#include "tests/apps/commands/workplace.h"

// Training as a process: what it prints, how it ends, what it leaves behind.

using namespace ottava;
using namespace ottava::test;
namespace fs = std::filesystem;

TEST_CASE("a stop signal saves after the current step, ends with 0, and the next start goes on") {
  Workplace place;
  for (int signal : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) {
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

TEST_CASE("the step that a run is stopped after is logged, whatever metrics.log_freq is") {
  Workplace place;
  const Outcome stopped =
      place.run("train tiny.yaml --training.steps 1000000 --metrics.log_freq 1000000", [&](int group) {
        CHECK(wait_until(100, [&] { return logged(place / "out", "lr").size() == 1; }));
        ::kill(-group, SIGTERM);
      });
  INFO(stopped.output);
  CHECK(stopped.exit_code == 0);
  const size_t at = stopped.output.find("Stopped after step ");
  REQUIRE(at != std::string::npos);
  const int64_t last = std::stoll(stopped.output.substr(at + 19));
  CHECK(logged_lines(place / "out").back().at("step", "").as_integer("") == last);
}

TEST_CASE("ps and top show a rank by the program's name") {
  const Workplace place;
  const std::string config = place / "tiny.yaml";
  std::string name;
  const Outcome out =
      place.run("launch -n 1 -- train " + config + " --training.steps 100000 --checkpoint.enable false",
                [&](int launcher) {
                  int rank = 0;
                  wait_until(60, [&] {
                    rank = process_of_rank(config, 0);
                    if (rank == 0) return false;
                    std::ifstream("/proc/" + std::to_string(rank) + "/comm") >> name;
                    return name == "ottava";
                  });
                  ::kill(launcher, SIGTERM);
                });
  INFO(out.output);
  CHECK(out.exit_code == 0);
  CHECK(name == "ottava");
}

TEST_CASE("nohup keeps a run from a closed terminal") {
  Workplace place;
  const Outcome out = place.run_shell(
      "trap '' HUP; exec " OTTAVA " train tiny.yaml --training.steps 1000000", [&](int group) {
        auto reached = [&](size_t lines) {
          return wait_until(100, [&] { return logged(place / "out", "lr").size() >= lines; });
        };
        CHECK(reached(2));
        ::kill(-group, SIGHUP);
        CHECK(reached(logged(place / "out", "lr").size() + 3));
        ::kill(-group, SIGTERM);
      });
  INFO(out.output);
  CHECK(out.exit_code == 0);
  CHECK_FALSE(has(out.output, "Hangup"));
  CHECK(has(out.output, "received Terminated"));
}

TEST_CASE("a file past the limit of the shell is named, and the checkpoint before it stays") {
  Workplace place;
  REQUIRE(place.run("train tiny.yaml").exit_code == 0);
  const Outcome out = place.run_shell("ulimit -f 200; exec " OTTAVA " train tiny.yaml --training.steps 9");
  INFO(out.output);
  CHECK(out.exit_code == 1);
  CHECK(has(out.output, "File too large"));
  CHECK(has(out.output, "step-9.tmp/"));
  CHECK(place.run("train tiny.yaml --training.steps 9").exit_code == 0);
}

TEST_CASE("what is wrong with a configuration is said at once, with the place and the arithmetic") {
  Workplace place;
  place.refuses("--training.stpes 5", {"unknown option --training.stpes; did you mean --training.steps?"});
  place.refuses("--training.steps many", {"training.steps: expected an integer"});
  place.refuses("--training.steps 0 --training.seq_len x",
                {"2 problems", "training.steps", "training.seq_len"});
  place.refuses("--training.local_batch_size 8 --training.global_batch_size 20",
                {"20 is not a multiple of local_batch_size 8 (remainder 4)"});
  place.refuses("--model.max_seq_len 16", {"32 tokens are more than model.max_seq_len 16"});
  place.refuses("--model.qkv_bias true --model.qk_norm true", {"qkv_bias and qk_norm are both set"});
  place.refuses(
      "--model.max_seq_len 40 --validation.enable true --validation.seq_len 48 "
      "--validation.dataset_path text.txt",
      {"48 tokens are more than model.max_seq_len 40; lower validation.seq_len"});
  place.refuses("--model.n_heads 3", {"dim 32 is not a multiple of n_heads 3"});
  place.refuses("--model.n_heads 4 --model.n_kv_heads 3",
                {"n_heads 4 is not a multiple of n_kv_heads 3 (remainder 1)"});
  place.refuses("--model.vocab_size 100", {"vocab_size 100 is smaller than the tokenizer's 2256"});
  place.refuses("--model.flavor 9B", {"9B", "debugmodel"});
  place.refuses("--parallelism.tensor_parallel_degree 2", {"1 rank cannot be divided", "tp 2"});
  place.refuses("--quantize.linear.float8.recipe_name fp4",
                {"fp4", "tensorwise, tensorwise_with_gw_hp, delayed"});
  place.refuses("--optimizer.implementation fused --training.dtype bfloat16",
                {"training.dtype: bfloat16 is not supported: "});
  place.refuses("stray", {"expected --section.key value, got 'stray'"});
  place.write("broken.yaml", "training: {steps: 5\n");
  const std::string broken = place.run("train broken.yaml").output;
  CHECK(has(broken, "[config] broken.yaml:"));
  CHECK(has(broken, "not valid YAML: a bracket opened here or above is never closed"));
  CHECK(has(place.run("train absent.yaml").output, "absent.yaml does not exist"));
  CHECK(has(place.run("train --training.stpes 4").output, "unknown option --training.stpes"));
}

TEST_CASE("text, tokenizer and weights that are missing or damaged are named before training") {
  Workplace place;
  place.refuses("--training.dataset_path absent.txt", {"training.dataset_path: 'absent.txt' does not exist"});
  place.refuses("--training.dataset_path 'absent*.txt'", {"'absent*.txt' matches no file"});
  place.write("empty.txt", "");
  place.refuses("--training.dataset_path empty.txt", {"the dataset is empty: 1 file in", "empty.txt'"});
  place.write("short.txt", "too short");
  place.refuses("--training.dataset_path short.txt --training.seq_len 512",
                {"the dataset is too small", "short.txt'", "seq_len"});
  place.write("bad.jsonl", "{\"text\": \"fine\"}\n{\"text\": 5}\n");
  place.refuses("--training.dataset_path bad.jsonl",
                {"'bad.jsonl' line 2", "the value of \"text\" is not a string"});

  place.refuses("--model.hf_assets_path absent", {"model.hf_assets_path: 'absent' does not exist"});
  fs::create_directory(place / "assets");
  place.refuses("--model.hf_assets_path assets", {"assets/tokenizer.json does not exist"});
  place.write("assets/tokenizer.json", "{\"model\": {\"type\": \"BPE\", ");
  place.refuses("--model.hf_assets_path assets", {"[assets/tokenizer.json] malformed JSON"});
  place.refuses(
      "--model.hf_assets_path short.txt",
      {"model.hf_assets_path: 'short.txt' is a file, expected the folder that holds tokenizer.json"});

  place.refuses("--model.flavor hf --model.hf_assets_path " OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256",
                {"flavor hf takes the model from config.json in model.hf_assets_path, but ",
                 "has none: set it to the folder of a Hugging Face model, or choose another model.flavor"});

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
  place.refuses("--checkpoint.initial_load_path bad", {"bad/model.safetensors", "it is truncated"});
  damaged("model.safetensors", [&](const std::string& path) { overwrite(path, 0, std::string(8, '\x7f')); });
  place.refuses("--checkpoint.initial_load_path bad",
                {"bad/model.safetensors: its header has changed since it was saved",
                 "if it was changed on purpose, remove bad/manifest.json"});
  fs::remove(place / "bad/manifest.json");
  place.refuses("--checkpoint.initial_load_path bad", {"bad/model.safetensors", "not a safetensors file"});
  damaged("model.safetensors", [&](const std::string& path) {
    overwrite(path, static_cast<int64_t>(fs::file_size(path)) - 4, std::string("\0\0\xc0\x7f", 4));
  });
  place.refuses("--checkpoint.initial_load_path bad", {"model.safetensors", "not finite"});
  damaged("model.safetensors", [](const std::string& path) { fs::remove(path); });
  place.refuses("--checkpoint.initial_load_path bad", {"cannot open bad/model.safetensors"});
  place.refuses(
      "--checkpoint.initial_load_path " + good + " --model.dim 64",
      {"does not fit this model", "[2256, 32], expected [2256, 64]",
       "set the section model as it is there, or choose another checkpoint (where the model is that of the "
       "folder's own config.json, its files do not belong together)"});
  for (const char* key :
       {"dim 64", "n_layers 1", "ffn_dim 32", "n_kv_heads 2", "tie_embeddings true", "qk_norm true"}) {
    const Outcome other =
        place.run("train tiny.yaml --job.dump_folder good --training.steps 9 --model." + std::string(key));
    INFO(key << "\n" << other.output);
    CHECK(other.exit_code == 1);
    CHECK(has(other.output, "has another model than this configuration"));
    CHECK(has(other.output, "start a new run in another job.dump_folder"));
  }

  place.refuses("--model.flavor hf --model.hf_assets_path " + good + " --training.seq_len 70000",
                {"70000 tokens are longer than max_position_embeddings 32", "lower training.seq_len, or"});
  place.refuses("--model.flavor hf --model.hf_assets_path " + good +
                    " --validation.enable true --validation.seq_len 48 --validation.dataset_path text.txt",
                {"48 tokens are longer than max_position_embeddings 32", "lower validation.seq_len, or"});

  // Dropout is of training alone: what has it still generates, and its weights are a start.
  damaged("config.json", [](const std::string& path) {
    std::string text = read_file(path);
    const std::string none = "\"attention_dropout\": 0.0";
    REQUIRE(has(text, none));
    write_file_synced(path, text.replace(text.find(none), none.size(), "\"attention_dropout\": 0.1"));
  });
  fs::remove(place / "bad/manifest.json");
  place.refuses("--model.flavor hf --model.hf_assets_path bad",
                {"[bad/config.json] attention_dropout is 0.1: dropout, which transformers applies in "
                 "training, is not supported; set it to 0"});
  CHECK(place.run("generate --checkpoint bad --prompt hello --max-tokens 2").exit_code == 0);
  CHECK(place.run("train tiny.yaml --job.dump_folder other --checkpoint.initial_load_path bad").exit_code ==
        0);

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
  fs::create_symlink("nowhere", place / "dangling");
  place.refuses(
      "--job.dump_folder dangling/x",
      {"[job.dump_folder] cannot write into dangling/x: dangling is a link to nowhere, which cannot be "
       "followed: No such file or directory"});
  place.refuses("--checkpoint.folder ../text.txt",
                {"[checkpoint.folder] cannot write into out/../text.txt: Not a directory"});

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
  CHECK(has(found, "data: 'without_extension' is read as JSON lines because its first line is an object"));
  CHECK(has(found, "; each line of JSON is a document (\"text\")"));

  std::string ids;
  for (int i = 0; i < 4000; ++i) ids += std::string{static_cast<char>(i % 251), static_cast<char>(i % 8)};
  place.write("train.bin", ids);
  CHECK(has(place.run("train tiny.yaml --training.dataset_path train.bin").output,
            "set its format (training.format, or format of its source or set) to tokens_u16 or tokens_u32"));
  CHECK(
      has(start_on("train.bin", " --training.format tokens_u16"), "Data: 'train.bin': 1 file, 7.8 KiB of "));
  place.write("text.parquet", std::string("PAR1\0\0", 6));
  CHECK(has(place.run("train tiny.yaml --training.dataset_path text.parquet").output,
            "'text.parquet' is not text: byte 4 is 0"));
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
  CHECK(has(out.output, " ignored: "));
}

TEST_CASE("each of the files with TorchTitan's keys says in one sentence what it needs") {
  Workplace place;
  for (const char* file : {"small", "8b", "70b", "405b"}) {
    const Outcome out =
        place.run(fmt::format("train " OTTAVA_SOURCE_DIR "/tests/apps/config/torchtitan/{}.toml", file));
    INFO(out.output);
    CHECK(out.exit_code == 1);
    CHECK(has(out.output, fmt::format("{}.toml, which can be trained after adding --model.hf_assets_path "
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
  CHECK(has(out.output,
            "[mpi] the MPI module was not found (looked at /nowhere/libottava_mpi.so): compile it with "
            "build_mpi.sh"));
}
