#include "apps/commands/plan_command.h"

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/predict/sample_step.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "tests/apps/commands/planned.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

// Plans of pipelines, of ranks that share sequences, and the search for the fastest layout.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

TEST_CASE("plan --search prints keys that make the layout it found, for people and programs") {
  const TemporaryFolder folder;
  const Overrides overrides = small_model_on_gpu({"--training.global_batch_size", "16"});
  const std::string file = folder / "plan.json";
  const std::string text = printed({.overrides = overrides,
                                    .world_size = 4,
                                    .machine = {.device = "h100_sxm"},
                                    .work = PlanCommand::Work::search,
                                    .top = 3,
                                    .json = file});
  CHECK_THAT(text, Contains(" layouts of 4 ranks, ") &&
                       Contains(" recorded in full; each may take 77.1 GiB") && Contains("\n  1 ") &&
                       Contains("\n  3 ") && !Contains("\n  4 ") &&
                       Contains("\nOf pipelines the file's was tried, and what --fix ") &&
                       Contains("\nThe first:\n  --parallelism.data_parallel_replicate_degree "));
  const Json report = Json::parse(read_file(file), "plan");
  const Json::Array& layouts = report.at("layouts", "plan").as_array("layouts");
  REQUIRE(layouts.size() == 3);
  CHECK(report.at("schema", "plan").as_string("schema") == "ottava plan 1");
  CHECK(report.at("device", "plan").as_string("device") == "h100_sxm");
  Overrides found;
  for (const auto& [key, value] : layouts[0].at("keys", "plan").as_object("keys"))
    found.insert(found.end(), {"--" + key, value.as_string("value")});
  const PlannedExperiment planned = plan_experiment(load_config("", changed_to(overrides, found)), 4, 90);
  const StepPlan plan = record_first_rank(planned.experiment.shape, planned.device, planned.experiment.mesh);
  CHECK(layouts[0].at("memory_gib", "plan").as_number("memory") ==
        Approx(static_cast<double>(plan.memory.total_bytes()) / (1 << 30)));
  CHECK(layouts[0].at("traffic", "plan").at("sent_bytes", "plan").as_integer("sent") ==
        plan.traffic.sent_bytes());
  const Json& time = layouts[0].at("time", "plan");
  CHECK(time.at("low", "time").as_number("low") < time.at("median", "time").as_number("median"));
  CHECK(time.at("median", "time").as_number("median") <=
        layouts[1].at("time", "plan").at("median", "time").as_number("median"));
  CHECK(layouts[0].at("reason", "plan").as_string("reason").empty());
  CHECK_FALSE(layouts[1].at("reason", "plan").as_string("reason").empty());
  const auto in_vain = [&](const Overrides& more) {
    return printed({.overrides = changed_to(overrides, more),
                    .world_size = 4,
                    .machine = {.device = "h100_sxm", .limit_gib = 0.0001},
                    .work = PlanCommand::Work::search});
  };
  CHECK_THAT(in_vain({}), Contains("NONE FITS; the closest takes ") && Contains(" too much: ") &&
                              Contains("\n  --parallelism.data_parallel_replicate_degree ") &&
                              Contains("\n  what helps: more ranks, shorter sequences, "
                                       "optimizer.state_dtype: bfloat16, a device with more memory, or a "
                                       "pipeline: --fix parallelism.pipeline_parallel_degree=N\n"));
  CHECK_THAT(in_vain({"--optimizer.state_dtype", "bfloat16", "--parallelism.pipeline_parallel_degree", "2"}),
             Contains("\n  what helps: more ranks, shorter sequences, a device with more memory\n"));
}

TEST_CASE("what plan --search found is planned with the same decisions and the same memory") {
  const TemporaryFolder folder;
  const std::string file = folder / "plan.json";
  const Overrides overrides = small_model_on_gpu(
      {"--training.global_batch_size", "8", "--model.converters", "[quantize.linear.float8]"});
  const auto layouts = [&](const Overrides& more, MachineChoice machine, PlanCommand::Work work) {
    const bool searches = work == PlanCommand::Work::search;
    printed({.overrides = changed_to(overrides, more),
             .world_size = 4,
             .machine = std::move(machine),
             .work = work,
             .fixed = searches ? std::vector<std::string>{"quantize.linear.float8.enable_fsdp_float8_all_"
                                                          "gather=false",
                                                          "model.converters=[quantize.linear.float8]"}
                               : std::vector<std::string>{},
             .json = file});
    const Json report = Json::parse(read_file(file), "plan");
    return report.at("layouts", "plan").as_array("layouts");
  };
  std::set<std::string> decided;
  for (const double limit : {1.0, 0.0055, 0.005, 0.0045, 0.004}) {
    const MachineChoice machine{.device = "h100_sxm", .limit_gib = limit};
    for (const Json& found : layouts({}, machine, PlanCommand::Work::search)) {
      if (!found.at("fits", "plan").as_bool("fits")) continue;
      Overrides keys;
      for (const auto& [key, value] : found.at("keys", "plan").as_object("keys"))
        keys.insert(keys.end(), {"--" + key, value.as_string("value")});
      const Json again = layouts(keys, machine, PlanCommand::Work::step).at(0);
      INFO(found.dump(2) << again.dump(2));
      CHECK(again.at("fits", "plan").as_bool("fits"));
      CHECK(again.at("memory_gib", "plan").as_number("memory") ==
            found.at("memory_gib", "plan").as_number("memory"));
      CHECK(again.at("decisions", "plan").dump(0) == found.at("decisions", "plan").dump(0));
      decided.insert(found.at("decisions", "plan").dump(0));
    }
  }
  CHECK(decided.size() >= 2);  // codes are kept where they fit, and not where they do not
}

TEST_CASE("a layout that plan --search found with mode auto says what that comes to, and is planned alike") {
  const TemporaryFolder folder;
  const std::string file = folder / "plan.json";
  const Overrides overrides = changed_to(small_model_on_gpu({"--training.global_batch_size", "1"}),
                                         {"--model.n_layers", "8", "--training.seq_len", "256"});
  const auto plan = [&](const Overrides& more, std::optional<double> limit, PlanCommand::Work work) {
    return printed({.overrides = changed_to(overrides, more),
                    .world_size = 1,
                    .machine = {.device = "h100_sxm", .limit_gib = limit},
                    .work = work,
                    .json = file});
  };
  const auto first = [&] {
    return Json::parse(read_file(file), "plan").at("layouts", "plan").as_array("layouts").at(0);
  };
  const auto gib_with = [&](const char* option) {
    plan({"--activation_checkpoint.mode", "selective", "--activation_checkpoint.selective_ac_option", option},
         {}, PlanCommand::Work::step);
    return first().at("memory_gib", "plan").as_number("memory");
  };
  const double limit = (gib_with("op") + gib_with("all_but_attention")) / 2;
  const std::string text = plan({}, limit, PlanCommand::Work::search);
  const Json found = first();
  const std::string decided =
      found.at("decisions", "plan").at("activation_checkpoint.mode", "plan").as_string("decided");
  INFO(text);
  CHECK_THAT(decided, Contains("op, all but attention of "));
  CHECK_THAT(text, Contains("1 x 1 sequence, recompute auto (" + decided + "), bf16") &&
                       Contains(" --activation_checkpoint.mode auto ") &&
                       Contains("\n  decided as by a run: activation_checkpoint.mode = " + decided +
                                " (the fastest that fits, and "));
  CHECK_THAT(plan({"--activation_checkpoint.mode", "auto"}, limit, PlanCommand::Work::step),
             Contains("Decided as by a run: activation_checkpoint.mode = " + decided + " ("));
  CHECK(first().at("memory_gib", "plan").as_number("memory") ==
        found.at("memory_gib", "plan").as_number("memory"));
  CHECK(first().at("time", "plan").at("median", "time").as_number("median") ==
        found.at("time", "plan").at("median", "time").as_number("median"));
}

TEST_CASE("the options that plan --search tells to paste are what they say in a shell") {
  const Overrides float8{"--model.converters", "[quantize.linear.float8]", "--training.global_batch_size",
                         "16"};
  for (const double limit : {70.0, 0.0001}) {
    const std::string text = printed({.overrides = small_model_on_gpu(float8),
                                      .world_size = 2,
                                      .machine = {.device = "h100_sxm", .limit_gib = limit},
                                      .work = PlanCommand::Work::search,
                                      .top = 1});
    const size_t begin = text.find("\n  --parallelism.") + 3;
    REQUIRE(begin > 3);
    const std::string options = text.substr(begin, text.find('\n', begin) - begin);
    INFO(options);
    CHECK_THAT(options, Contains(" --model.converters '["));
    // What a word of a shell may be without quotes, and nothing else outside of them.
    bool is_quoted = false;
    for (const char c : options) {
      if (c == '\'') is_quoted = !is_quoted;
      CHECK((is_quoted || std::string_view("[]{}()*?$&;<>|\"\\`!#~").find(c) == std::string_view::npos));
    }
    CHECK_FALSE(is_quoted);
  }
}

TEST_CASE("layouts of a file with a precision level, with FP8 and without it, load behind that file") {
  const TemporaryFolder folder;
  const std::string file = folder / "plan.json";
  const Overrides overrides =
      small_model_on_gpu({"--training.mixed_precision_level", "O1", "--training.global_batch_size", "16"});
  printed({.overrides = overrides,
           .world_size = 2,
           .machine = {.device = "h100_sxm"},
           .work = PlanCommand::Work::search,
           .top = 100,
           .json = file});
  std::set<bool> with_float8;
  const Json report = Json::parse(read_file(file), "plan");
  for (const Json& found : report.at("layouts", "plan").as_array("layouts")) {
    Overrides keys;
    for (const auto& [key, value] : found.at("keys", "plan").as_object("keys"))
      keys.insert(keys.end(), {"--" + key, value.as_string("value")});
    const Config c = load_config("", changed_to(overrides, keys));
    const bool has_float8 = found.at("flops", "plan").at("fp8", "flops").as_number("fp8") > 0;
    CHECK(c.model.uses_float8() == has_float8);
    CHECK(c.training.mixed_precision_level == (has_float8 ? "O1" : "O2"));
    with_float8.insert(has_float8);
  }
  CHECK(with_float8.size() == 2);
}

TEST_CASE("a plan of a pipeline has all its ranks, its schedule and the time of all of them together") {
  const TemporaryFolder folder;
  const std::string file = folder / "plan.json";
  const std::string text =
      printed({.overrides = changed_to(small_model_on_gpu({"--parallelism.pipeline_parallel_degree", "4"}),
                                       {"--model.n_layers", "6", "--training.local_batch_size", "8",
                                        "--training.seq_len", "1024"}),
               .world_size = 4,
               .machine = {.device = "h100_sxm"},
               .json = file});
  INFO(text);
  CHECK_THAT(text,
             Contains("Pipeline: 1F1B, 4 ranks with 1 stage each, 8 micro-batches: 27.3% of the time idle"));
  CHECK_THAT(text, Contains("embedding, layer 0; 4 micro-batches in flight at most"));
  CHECK_THAT(text, Contains("layer 5, head; 1 micro-batch in flight at most"));
  CHECK_THAT(text, Contains("\nrank 0   0123......aA4bB5"));
  CHECK_THAT(text, Contains("pp recv"));
  const Json report = Json::parse(read_file(file), "plan");
  const Json& row = report.at("layouts", "plan").as_array("layouts").at(0);
  const Json& time = row.at("time", "row");
  const double idle = time.at("idle_share", "time").as_number("idle");
  CHECK(idle > 0.05);
  CHECK(idle < 0.9);
  CHECK(time.at("median", "time").as_number("median") > time.at("compute", "time").as_number("compute"));
  CHECK(row.at("keys", "row").at("parallelism.pipeline_parallel_degree", "keys").as_string("degree") == "4");
}

TEST_CASE("the utilization of a pipeline is the mean of its ranks'") {
  const TemporaryFolder folder;
  const std::string file = folder / "plan.json";
  // The output layer makes the last rank compute several times what the first does.
  const Overrides overrides = changed_to(
      small_model_on_gpu({"--parallelism.pipeline_parallel_degree", "2"}),
      {"--model.vocab_size", "32000", "--training.local_batch_size", "8", "--training.seq_len", "1024"});
  const std::string text =
      printed({.overrides = overrides, .world_size = 2, .machine = {.device = "h100_sxm"}, .json = file});
  const PlannedExperiment planned = plan_experiment(load_config("", overrides), 2, 90);
  const std::vector<StepPlan> roles =
      sample_roles(planned.experiment.shape, planned.device, planned.experiment.mesh);
  REQUIRE(roles.size() == 2);
  const DeviceTable device = find_device("h100_sxm");
  const auto ideal_seconds = [&](const StepPlan& plan) {
    return (plan.flops(Precision::fp32) / device.fp32_tflops +
            plan.flops(Precision::bf16) / device.bf16_tflops) /
           1e12;
  };
  REQUIRE(ideal_seconds(roles[1]) > 2 * ideal_seconds(roles[0]));
  const double seconds = Json::parse(read_file(file), "plan")
                             .at("layouts", "plan")
                             .as_array("layouts")
                             .at(0)
                             .at("time", "row")
                             .at("median", "time")
                             .as_number("median");
  CHECK_THAT(text,
             Contains(fmt::format(", util {:.1f}%\n",
                                  100 * (ideal_seconds(roles[0]) + ideal_seconds(roles[1])) / 2 / seconds)));
}

TEST_CASE("what is left to the run is compared on the fullest rank of a pipeline") {
  // The output layer makes the last rank the fullest, the more so the more tokens have logits at once.
  const std::string text =
      printed({.overrides = changed_to(small_model_on_gpu({"--parallelism.pipeline_parallel_degree", "2"}),
                                       {"--model.vocab_size", "32000", "--training.local_batch_size", "2",
                                        "--training.seq_len", "4096"}),
               .world_size = 2,
               .machine = {.compute_capability = 103}});
  INFO(text);
  const auto gib_with = [&](const char* tokens) {
    const size_t line = text.find(fmt::format("\n  {} ", tokens));
    REQUIRE(line != std::string::npos);
    const std::string rest = text.substr(line + 7);
    CHECK_THAT(rest.substr(0, rest.find(';')), Contains(" GiB of memory on rank 1"));
    return std::stod(rest);
  };
  CHECK_THAT(text,
             Contains("Left to the run: model.loss_chunk_tokens, decided by the memory that is free; "));
  CHECK(gib_with("1024") < gib_with("2048"));
  CHECK(gib_with("2048") < gib_with("4096"));
}

TEST_CASE("4,096 ranks on all five axes are planned, every rank of the pipeline") {
  const std::string text =
      printed({.file = OTTAVA_SOURCE_DIR "/configs/llama3_405b.yaml",
               .overrides = {"--parallelism.pipeline_parallel_degree", "8",
                             "--parallelism.data_parallel_replicate_degree", "2",
                             "--parallelism.context_parallel_degree", "4", "--training.local_batch_size", "8",
                             "--training.global_batch_size", "128", "--model.converters", "[]"},
               .world_size = 4096,
               .machine = {.device = "h100_sxm"}});
  INFO(text);
  CHECK_THAT(text, Contains("Ranks: 4096 (pp 8 x dp_replicate 2 x dp_shard 8 x cp 4 x tp 8 = 4096)"));
  CHECK_THAT(text, Contains("\n  7:") && Contains("layers 111 to 125, head"));
  for (const char* axis : {"pp", "dp_replicate", "dp_shard", "cp", "tp"})
    CHECK_THAT(text, Contains(fmt::format("\n  {:14} ", axis)));
  CHECK_THAT(text, Contains("Fits: ") && Contains("ranks of the pipeline compute nothing in "));
}

TEST_CASE("262,144 tokens of the 8B shape fit on 8 ranks that share the sequence") {
  for (const auto& [mask, whose] :
       {std::pair{"causal", "attention by cuDNN"}, std::pair{"block_causal", "attention by our kernels"}}) {
    const std::string text =
        printed({.file = OTTAVA_SOURCE_DIR "/configs/llama3_8b.yaml",
                 .overrides = {"--parallelism.context_parallel_degree", "8", "--training.seq_len", "262144",
                               "--training.local_batch_size", "1", "--training.global_batch_size", "1",
                               "--activation_checkpoint.mode", "full", "--model.attn_mask_type", mask},
                 .world_size = 8,
                 .machine = {.device = "h100_sxm"}});
    INFO(text);
    CHECK_THAT(text, Contains("cp 8") && Contains("Fits: ") && Contains(whose));
    CHECK_THAT(text, Contains("Context parallel: 8 ranks share each sequence; keys and values of 2 of 8 "
                              "key/value heads at a time, those of the next ones travel beside attention\n"));
    // 262,144 tokens, 2 heads of 128, two bytes each of dK and dV.
    for (const char* more : {"cuDNN's attention takes 0.250 GiB more",
                             " GiB of memory, 0.250 more for its gradients, and cuDNN's workspace"})
      CHECK((text.find(more) != std::string::npos) == (std::string(mask) == "causal"));
  }
}

TEST_CASE("which attention a GPU will use is left to the run, with the time of both") {
  const Overrides longer =
      changed_to(small_model_on_gpu({}),
                 {"--training.seq_len", "16384", "--model.n_heads", "2", "--model.n_kv_heads", "2"});
  const auto plan = [&](const Overrides& keys) {
    return printed({.overrides = changed_to(longer, keys), .machine = {.device = "h200_sxm"}});
  };
  const std::string left = "Left to the run: attention.backend, ";
  const std::string text = plan({});
  INFO(text);
  const std::string choice = text.substr(std::min(text.find(left), text.size()));
  CHECK_THAT(choice,
             Contains("this plan is the first of\n  cudnn ") &&
                 Contains(" GiB of memory and cuDNN's workspace, whose size is known where it runs; ") &&
                 Contains("\n  flash "));
  CHECK_THAT(text, Contains("attention by cuDNN"));
  const auto seconds = [&](const char* name) {
    const std::string line = choice.substr(choice.find(name));
    return line.substr(line.find("; ") + 2, line.find(" a step") - line.find("; ") - 2);
  };
  CHECK_THAT(text, Contains("Time per step: " + seconds("\n  cudnn ")));
  CHECK(seconds("\n  cudnn ") != seconds("\n  flash "));
  // Of narrow heads ours are faster.
  const std::string narrow = plan({"--model.n_heads", "4", "--model.n_kv_heads", "4"});
  CHECK_THAT(narrow, Contains("this plan is the first of\n  flash ") && Contains("attention by our kernels"));
  const std::string ours = plan({"--attention.backend", "flash"});
  CHECK_THAT(ours, !Contains(left) && Contains("Time per step: " + seconds("\n  flash ")));
  CHECK_THAT(
      plan({"--attention.backend", "cudnn"}),
      !Contains(left) &&
          Contains("  without the workspace of cuDNN's attention, whose size is known where it runs\n"));
}

TEST_CASE("a plan takes cuDNN's attention only where a run can") {
  const std::pair<Overrides, const char*> cases[] = {
      {{"--model.attn_mask_type", "block_causal"},
       "cuDNN's attention does not support model.attn_mask_type block_causal"},
      {{"--training.mixed_precision_param", "float32"},
       "cuDNN's attention needs bfloat16, but training.mixed_precision_param is f32"}};
  for (const auto& [keys, why] : cases) {
    PlanCommand command{.overrides = changed_to(small_model_on_gpu({}), keys),
                        .machine = {.device = "h200_sxm"}};
    INFO(why);
    CHECK_THAT(printed(command), !Contains("attention.backend") && Contains("attention by our kernels"));
    command.overrides.insert(command.overrides.end(), {"--attention.backend", "cudnn"});
    CHECK_THROWS_WITH(printed(command),
                      fmt::format("[attention] backend is cudnn, but {}: set it to auto or flash", why));
  }
  CHECK_THROWS_WITH(
      printed({.overrides = small_model({"--attention.backend", "cudnn"})}),
      "[attention] backend is cudnn, but the device is cpu: set it to auto or flash; to plan for GPUs, "
      "name one with --device");
}

TEST_CASE("a plan says where context parallel ranks have nothing to hide their transfers behind") {
  const auto plan = [](const char* tp) {
    return printed({.overrides = changed_to(small_model_on_gpu({"--parallelism.context_parallel_degree", "2",
                                                                "--parallelism.tensor_parallel_degree", tp}),
                                            {"--training.seq_len", "1024", "--model.n_kv_heads", "2"}),
                    .world_size = 4,
                    .machine = {.device = "h100_sxm"}});
  };
  CHECK_THAT(plan("1"), Contains("keys and values of 1 of 2 key/value heads at a time, those of the next"));
  CHECK_THAT(plan("2"),
             Contains("keys and values of 1 of 1 key/value head at a time: in forward nothing travels beside "
                      "attention, in backward gathers travel beside wo's products; with fewer "
                      "tensor-parallel ranks each has several heads\n"));
}
