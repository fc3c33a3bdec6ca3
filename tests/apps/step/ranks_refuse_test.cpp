#include <filesystem>
#include <fstream>

#include "core/host_name.h"
#include "core/io/file.h"
#include "parallel/comm/sockets/held_port.h"
#include "tests/apps/step/launched_job.h"

// What is wrong for one rank is refused on all of them, each of which says it.

using namespace ottava;
using namespace ottava::test;
namespace fs = std::filesystem;
using Catch::Contains;

namespace {

/// Two launchers with a rank each, as on two machines, though both are this one. `first` and `second` are
/// shell commands that start a command of the program.
std::string launch_both(const HeldPort& port, std::string first, std::string second) {
  for (const auto& [command, machine] : {std::pair{&first, 0}, {&second, 1}}) {
    command->insert(
        command->find(" train"),
        fmt::format(" launch -n 1 --nnodes 2 --node-rank {} --master-addr 127.0.0.1 --master-port {} --",
                    machine, port.number()));
  }
  return first + " & first=$!; " + second + " & wait $!; code=$?; wait $first; exit $((code | $?))";
}

}  // namespace

TEST_CASE("what does not fit the ranks is refused on all of them") {
  Job job;
  const auto [options, text] = GENERATE(table<std::string, std::string>({
      {"--parallelism.data_parallel_shard_degree 3", "but the world size is 2 ranks"},
      {"--parallelism.tensor_parallel_degree 2 --model.n_heads 3 --model.n_kv_heads 3 --model.head_dim 8",
       "tensor_parallel_degree 2 does not divide n_heads 3 (remainder 1)"},
      {"--parallelism.tensor_parallel_degree 2 --model.ffn_dim 33",
       "tensor_parallel_degree 2 does not divide ffn_dim 33"},
      {"--training.global_batch_size 9",
       "global_batch_size 9 is not a multiple of local_batch_size 1 x 2 data-parallel ranks = 2 (remainder "
       "1)"},
      {"--attention.backend cudnn",
       "[attention] backend is cudnn, but the device is cpu: set it to auto or flash"},
  }));
  check_refused(launch(2, job.train(options)), 2, text);
}

TEST_CASE("what rank 0 alone cannot write is refused on all of them") {
  Job job;
  fs::create_directories(job.out() + "/config.yaml");
  check_refused(launch(2, job.train("--job.save_config_file config.yaml")), 2,
                "[job] rank 0: [file] cannot ");
}

TEST_CASE("a step too many that is skipped ends all ranks in their own words, behind its line and warning") {
  const auto [options, text, step] = GENERATE(table<std::string, std::string, int>({
      {"--training.max_norm 1e-37 --training.loss_scale 65536", "[training] 1 consecutive step was skipped",
       1},
      {"--optimizer.lr 1e30", "[training] 1 consecutive step had non-finite gradients", 2},
  }));
  for (int i = 0; i < 3; ++i) {
    Job job;
    const Outcome o =
        run_command(launch(4, job.train(options + " --training.max_consecutive_skipped_steps 0")));
    INFO(o.output);
    CHECK(o.exit_code != 0);
    CHECK(o.all_say(4, text));
    CHECK_THAT(o.output, !Contains(" stopped: [training]") &&
                             Contains(fmt::format("step:  {}  loss: ", step)) &&
                             Contains(fmt::format("step {} was skipped: ", step)));
    if (step == 1) CHECK(job.curve().size() == 1);  // a norm that is not finite has no number there
  }
}

TEST_CASE("ranks that were started differently are refused on all of them") {
  Job job;
  const HeldPort port;
  const std::string program = OTTAVA + job.train();
  SECTION("configurations") {
    check_refused(launch_both(port, program, program + " --optimizer.lr 1"), 2,
                  "the configuration differs between ranks: optimizer.lr (rank 0 has 0.002, rank 1 has 1.0); "
                  "1 of 2 ranks have rank 0's: start");
  }
  SECTION("configurations with many differences") {
    check_refused(
        launch_both(port, program,
                    program + " --training.steps 5 --training.seed 3 --optimizer.lr 1 --optimizer.eps 1e-5 "
                              "--metrics.log_freq 2 --checkpoint.interval 3"),
        2,
        "training.steps (rank 0 has 12, rank 1 has 5), training.seed (rank 0 has 0, rank 1 has 3), "
        "optimizer.lr (rank 0 has 0.002, rank 1 has 1.0), optimizer.eps (rank 0 has 1.0e-08, rank 1 has "
        "1.0e-05) and 2 more;");
  }
  SECTION("programs") {
    fs::copy_file(OTTAVA, job.in("other"));
    std::ofstream(job.in("other"), std::ios::app) << "x";
    check_refused(launch_both(port, program, job.in("other") + job.train()), 2,
                  "the ottava binary differs between ranks");
  }
  SECTION("a device that one of them does not have") {
    check_refused(
        launch_both(port, program, "CUDA_VISIBLE_DEVICES= " + program + " --training.device cuda"), 2,
        "rank 1 cannot continue: on " + host_name("its machine") + ": [device] 'cuda' cannot be used: ");
  }
  SECTION("data that one of them does not have") {
    for (const char* folder : {"here", "there"}) fs::create_directories(job.in(folder));
    fs::copy(job.in("text.txt"), job.in("here/only_here.txt"));
    const std::string relative = program + " --training.dataset_path only_here.txt";
    check_refused(launch_both(port, "cd " + job.in("here") + " && " + relative,
                              "cd " + job.in("there") + " && " + relative),
                  2, "training.dataset_path: 'only_here.txt' does not exist; looked at ");
  }
  SECTION("inputs that none of them has, all at once") {
    const std::string without = program + " --training.dataset_path none.txt --model.hf_assets_path nothing";
    check_refused(launch_both(port, without, without), 2, "[config] 2 problems in ");
  }
  SECTION("folders that are not shared") {
    fs::create_directories(job.in("here"));
    fs::create_directories(job.in("there"));
    const std::string relative = OTTAVA + job.train(kSave + " --job.dump_folder out");
    check_refused(launch_both(port, "cd " + job.in("here") + " && " + relative,
                              "cd " + job.in("there") + " && " + relative),
                  2, "cannot see a file that rank 0 wrote to out/checkpoint");
  }
}

TEST_CASE("a configuration that one rank cannot load ends all of them") {
  Job job;
  const HeldPort port;
  const std::pair<std::string, std::string> cases[] = {
      {std::string(OTTAVA) + " train no_such_file.yaml", "[config] no_such_file.yaml does not exist ("},
      {OTTAVA + job.train("--training.step 5"), "[config] 1 problem in " + job.in("job.yaml") + ": "}};
  for (const auto& [second, why] : cases) {
    const Outcome o =
        run_command(launch_both(port, OTTAVA + job.train("--comm.init_timeout_seconds 50"), second));
    INFO(o.output);
    CHECK(o.exit_code != 0);
    std::map<int, std::string> accounts = o.accounts();
    CHECK_THAT(accounts[0],
               Contains("[ranks] rank 1 cannot continue: on " + host_name("its machine") + ": " + why));
    CHECK(accounts[1].starts_with(why));
  }
}

TEST_CASE("ranks that find other files than the others are refused on all of them") {
  Job job;
  // A model to begin with, its config.json and its tokenizer are `assets` in the folder of each rank; one of
  // the files differs.
  run(OTTAVA + job.train(kSave + " --training.steps 1 --checkpoint.last_save_model_only true"));
  std::ofstream(job.in("other.txt")) << generated_text(400, 3);
  std::ofstream(job.in("items.jsonl")) << R"({"query": "one", "choices": ["hand", "ear"], "gold": 0})"
                                       << "\n";
  for (const char* folder : {"here", "there"}) {
    const fs::path to = job.in(folder);
    fs::create_directories(to);
    fs::copy(job.checkpoints() + "/step-1", to / "assets", fs::copy_options::recursive);
    for (const char* name : {"text.txt", "other.txt", "items.jsonl"}) fs::copy(job.in(name), to / name);
  }
  const auto replace = [&](const std::string& name, const std::string& from, const std::string& with) {
    const std::string path = job.in("there/" + name);
    std::string text = read_file(path);
    REQUIRE(text.find(from) != std::string::npos);
    text.replace(text.find(from), from.size(), with);
    std::ofstream(path, std::ios::binary) << text;
  };
  const std::string text = " --training.dataset_path text.txt",
                    pp = " --parallelism.pipeline_parallel_degree 2";
  std::string options, says;
  SECTION("training data, which stages share") {
    replace("text.txt", "octave", "OCTAVE");
    options = text + pp + " --training.local_batch_size 8",
    says = "the data of training.dataset_path differs";
  }
  SECTION("a source of a mixture, which tensor parallel ranks share") {
    replace("other.txt", ".", "!");
    options =
        " --training.dataset_path \"[]\" --training.mixture \"[{name: a, path: text.txt, weight: 1}, {name: "
        "b, "
        "path: other.txt, weight: 1}]\" --parallelism.tensor_parallel_degree 2";
    says = "the data of training.mixture (b) differs";
  }
  SECTION("validation data") {
    replace("other.txt", ".", "!");
    options = " --validation.enable true --validation.dataset_path other.txt";
    says = "the data of validation.dataset_path differs";
  }
  SECTION("questions") {
    replace("items.jsonl", "\"gold\": 0", "\"gold\": 1");
    options = " --evaluation.enable true --evaluation.tasks \"[{name: items, path: items.jsonl}]\"";
    says = "the task items of evaluation.tasks differs";
  }
  SECTION("the tokenizer") {
    replace("assets/tokenizer.json", "{1,3}", "{1,2}");
    options = " --model.hf_assets_path assets --model.vocab_size 2256";
    says = "the tokenizer (model.hf_assets_path) differs";
  }
  SECTION("config.json") {
    replace("assets/config.json", "\"rope_theta\": 500000", "\"rope_theta\": 10000");
    options = " --model.flavor hf --model.hf_assets_path assets";
    says = "the model (config.json of model.hf_assets_path) differs";
  }
  SECTION("weights") {
    Job seeded;
    run(OTTAVA +
        seeded.train(kSave + " --training.steps 1 --training.seed 5 --checkpoint.last_save_model_only true"));
    fs::copy_file(seeded.checkpoints() + "/step-1/model.safetensors",
                  job.in("there/assets/model.safetensors"), fs::copy_options::overwrite_existing);
    options = " --checkpoint.initial_load_path assets", says = "assets holds differs";
  }
  const HeldPort port;
  const auto in = [&](const char* folder) {
    return "cd " + job.in(folder) + " && " + OTTAVA +
           job.train("--job.dump_folder " + job.in("new") + options);
  };
  check_refused(launch_both(port, in("here"), in("there")), 2, says + " between ranks");
}

TEST_CASE("a checkpoint that cannot be loaded is refused on all ranks") {
  Job job;
  run(launch(2, job.train(kSave + " --training.steps 4")));
  const std::string go_on = kSave + " --checkpoint.load_step 4";
  SECTION("of another model") {
    check_refused(launch(2, job.train(go_on + " --model.ffn_dim 64")), 2,
                  "step-4 has another model than this configuration: intermediate_size 48 and 64");
  }
  SECTION("cut off under one rank's part") {
    const std::string weights = job.checkpoints() + "/step-4/model.safetensors";
    fs::resize_file(weights, fs::file_size(weights) - 1000);
    check_refused(launch(2, job.train(go_on)), 2,
                  fmt::format("{} has {} bytes, the manifest says", weights, fs::file_size(weights)));
    // Without naming it, a broken checkpoint is passed over; there is no other.
    check_refused(launch(2, job.train(kSave)), 2, "all checkpoints in " + job.checkpoints() + " are broken");
  }
}
