#include "apps/report/startup_report.h"

#include <fmt/ranges.h>

#include <fstream>

#include "core/data/tokenizer/tokenizer.h"
#include "core/log.h"
#include "tests/apps/report/report_at_start.h"
#include "tests/support/captured_output.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;
using Catch::EndsWith;
using Catch::StartsWith;

namespace {

const Device kCpu{DeviceType::cpu, 0};

}  // namespace

TEST_CASE("the report says model, precision, memory, compute and schedule") {
  const std::string text = report(1, {"--activation_checkpoint.mode", "full"});
  for (const char* part :
       {"Device: cpu (", "1 rank: ",
        "Model llama3 debugmodel: 6,163,712 total parameters (6 layers, dim 256, 16 heads of 16 over 16",
        "compute bf16, masters f32, moments f32, gradient sums f32; 6 of 6 blocks are recomputed",
        "Memory plan: ", "parameters ", "TFLOP on each rank and step",
        "local batch size 1, global batch size 1, gradient accumulation steps 1, sequence length 64"}) {
    CHECK_THAT(text, Contains(part));
  }
  CHECK_THAT(text, !Contains("Traffic: "));
}

TEST_CASE("the report says why a GPU that was wanted where there is one is not used") {
  const std::string why = cuda_unavailable_reason();
  if (!why.empty()) CHECK_THAT(report(1, {}), Contains("  No GPU is used: " + why + "\n"));
  CHECK_THAT(report(1, {"--training.device", "cpu"}), !Contains("No GPU is used"));
}

TEST_CASE("the report says where gradients are summed in bf16") {
  auto sums = [](int ranks, const char* replicas, const char* tensor_parallel) {
    return report(ranks, {"--training.mixed_precision_reduce", "bfloat16", "--model.n_layers", "2",
                          "--parallelism.data_parallel_replicate_degree", replicas,
                          "--parallelism.tensor_parallel_degree", tensor_parallel});
  };
  CHECK_THAT(sums(1, "1", "1"), Contains("gradient sums f32; "));
  CHECK_THAT(sums(2, "1", "2"), Contains("gradient sums f32; "));
  CHECK_THAT(sums(2, "2", "1"), Contains("gradient sums bf16 between 2 data-parallel ranks; "));
  CHECK_THAT(sums(8, "2", "2"), Contains("gradient sums bf16 between 4 data-parallel ranks, f32 between "
                                         "tensor-parallel ranks; "));
}

TEST_CASE("the report says which calls run beside compute and which are waited for") {
  CHECK_THAT(report(2, {}),
             Contains(" overlap with compute over thread (gathers of the units ahead, sums of gradients)\n"));
  const std::string late = report(2, {"--parallelism.fsdp_prefetch", "0"});
  CHECK_THAT(late, Contains(" overlap with compute over thread (sums of gradients), gathers ") &&
                       Contains(" are waited for (parallelism.fsdp_prefetch 0)\n"));
  CHECK_THAT(report(4, {"--parallelism.tensor_parallel_degree", "2"}),
             Contains("(gathers of the units ahead, sums of gradients), tensor parallel ") &&
                 Contains(" is waited for\n"));
  CHECK_THAT(report(2, {"--parallelism.data_parallel_replicate_degree", "2"}),
             Contains("gathers 0.0 KiB, reductions 0.0 KiB") &&
                 Contains(" overlap with compute over thread (sums of gradients)\n"));
  // Per block and micro-batch, of wqkv and w13 each: x gathered again for the weight gradient, and dx summed.
  // Then the gradients of seven norms, f32.
  const int64_t rows_of_the_other = 64 / 2 * 256 * 2, norm_gradient = 256 * 4;
  CHECK_THAT(
      report(2, {"--parallelism.tensor_parallel_degree", "2", "--model.n_layers", "3"}),
      Contains(fmt::format("0.0 KiB overlap with compute over thread, tensor parallel {:.1f} KiB beside "
                           "products, ",
                           static_cast<double>(3 * 4 * rows_of_the_other + 7 * norm_gradient) / 1024)) &&
          Contains(" is waited for\n"));
}

TEST_CASE("the report of a run on all five axes says what is whose") {
  const std::string text =
      report(32, {"--model.n_layers", "4", "--training.seq_len", "512", "--training.local_batch_size", "4",
                  "--training.global_batch_size", "32", "--parallelism.data_parallel_replicate_degree", "2",
                  "--parallelism.context_parallel_degree", "2", "--parallelism.tensor_parallel_degree", "2",
                  "--parallelism.pipeline_parallel_degree", "2"});
  INFO(text);
  // Each of 8 micro-batches goes to stage 1 once: a quarter of 512 tokens of 256 bf16 elements.
  const std::string to_stages = fmt::format("{:.1f} KiB", 8 * 512 * 256 * 2 / 4 / 1024.0);
  for (const std::string& part : std::vector<std::string>{
           "32 ranks: pp 2 x dp_replicate 2 x dp_shard 2 x cp 2 x tp 2 = 32",
           " on rank 0 at the fullest moment: ", "TFLOP on rank 0 in each step (",
           ", messages " + to_stages + "; ", " beside products, ", "context parallel ", " beside compute, ",
           "local batch size 4, global batch size 32, gradient accumulation steps 2, sequence length 512",
           "Pipeline: 1F1B, 2 ranks with 1 stage each, 8 micro-batches: 11.1% of the time idle where stages "
           "take the same time; rank 0 has embedding, layers 0 to 1; 2 micro-batches in flight at most; " +
               to_stages + " sent to other stages"})
    CHECK_THAT(text, Contains(part));
  CHECK_THAT(text, !Contains(" on each rank"));
}

TEST_CASE("stages of a pipeline keep their weights for the step and sum gradients once") {
  auto options = [](const char* stages) {
    const std::vector<std::string> keys{"--parallelism.pipeline_parallel_degree", stages,
                                        "--training.local_batch_size", "2"};
    return resolve_experiment(config_with(keys), nullptr, 4).shape.parameters;
  };
  CHECK(options("1").reduce_every_micro_batch);
  CHECK_FALSE(options("2").reduce_every_micro_batch);
  CHECK(options("1").reshard != FsdpOptions::Reshard::never);
  CHECK(options("2").reshard == FsdpOptions::Reshard::never);
}

TEST_CASE("the report warns of a pipeline with fewer micro-batches than stages") {
  const auto of = [](const char* sequences) {
    return report(4,
                  {"--parallelism.pipeline_parallel_degree", "4", "--parallelism.pipeline_parallel_schedule",
                   "GPipe", "--training.local_batch_size", sequences});
  };
  CHECK_THAT(of("2"), Contains("2 micro-batches on 4 stages leave ranks idle for most of the step: raise "
                               "training.local_batch_size"));
  CHECK_THAT(of("4"), !Contains("leave ranks idle"));
}

TEST_CASE("the report says which FP8 weights travel as codes, and why others do not") {
  auto fp8_report = [](int ranks, const char* recipe) {
    return report(ranks,
                  {"--model.converters", "[quantize.linear.float8]", "--quantize.linear.float8.recipe_name",
                   recipe, "--quantize.linear.float8.enable_fsdp_float8_all_gather", "true"});
  };
  CHECK_THAT(fp8_report(2, "tensorwise"), Contains("FP8: FSDP gathers 24 of 24 FP8 weights as codes\n"));
  CHECK_THAT(fp8_report(2, "mxfp8"), Contains("FP8: FSDP gathers 24 of 24 FP8 weights as codes\n"));
  // 768 and 1536 rows divide into whole blocks among 3 ranks, 256 do not: 85.3.
  CHECK_THAT(fp8_report(3, "mxfp8"),
             Contains("FP8: FSDP gathers 12 of 24 FP8 weights as codes; in bf16: 12 (layers.0.attention.wo: "
                      "256 rows / 3 shards = "
                      "85.3333, and shards of mxfp8 are gathered as whole blocks of 32 rows)\n"));
  CHECK_THAT(fp8_report(1, "mxfp8"), !Contains("FSDP gathers"));
}

TEST_CASE("the report says what codes of gathered weights cost, kept or made again") {
  auto codes = [](int ranks, const char* keep, const char* gathers = "false") {
    return report(ranks, {"--model.converters", "[quantize.linear.float8]", "--model.n_layers", "2",
                          "--training.global_batch_size", "4", "--activation_checkpoint.mode", "none",
                          "--quantize.linear.float8.keep_weight_codes", keep,
                          "--quantize.linear.float8.enable_fsdp_float8_all_gather", gathers});
  };
  // Two blocks of 256 x 768, 256 x 256, 1536 x 256 and 256 x 768 in a byte each: 1.75 MiB.
  CHECK_THAT(codes(2, "true"),
             Contains("FP8: codes of 8 gathered weights are kept through the step, 0.002 GiB: 8 "
                      "quantizations of 0.005 GiB read and written per step\n"));
  CHECK_THAT(codes(2, "false"),
             Contains("FP8: codes of 8 gathered weights are made again after every gather: 32 "
                      "quantizations of 0.019 GiB read and written per step\n"));
  CHECK_THAT(codes(2, "auto", "true"), !Contains("codes of ") && !Contains("keep_weight_codes"));
  CHECK_THAT(codes(1, "true"), Contains("FP8: keep_weight_codes has no effect: no FP8 weight is gathered in "
                                        "the compute dtype and freed within a step\n"));
}

TEST_CASE(
    "the report says what tensor parallel gathers as codes, with its amaxes, and what changes nothing") {
  auto remarks = [](int ranks, const char* recipe, std::vector<std::string> more) {
    more.insert(more.end(), {"--model.converters", "[quantize.linear.float8]", "--model.n_layers", "2",
                             "--quantize.linear.float8.recipe_name", recipe,
                             "--quantize.linear.float8.enable_tp_float8_all_gather", "true"});
    return report(ranks, more);
  };
  const std::vector<std::string> tp{"--parallelism.tensor_parallel_degree", "2"};
  // Two micro-batches of two blocks: x of wqkv and w13, dy of wo and w2. What is recomputed knows its amax.
  CHECK_THAT(remarks(2, "tensorwise", {tp[0], tp[1], "--training.global_batch_size", "2"}),
             Contains("FP8: tensor parallel gathers inputs of 4 and gradients of 4 of 8 FP8 layers as codes; "
                      "16 all-reduces of "
                      "an amax per step\n") &&
                 !Contains("has no effect"));
  CHECK_THAT(remarks(2, "rowwise", tp), Contains("FP8: tensor parallel gathers inputs of 4 and gradients of "
                                                 "0 of 8 FP8 layers as codes; 0 all-reduces"));
  CHECK_THAT(remarks(2, "mxfp8", tp), Contains("inputs of 0 and gradients of 0 of 8 FP8 layers"));
  CHECK_THAT(remarks(2, "tensorwise", {tp[0], tp[1], "--quantize.linear.float8.filter_fqns", "wk"}),
             Contains("inputs of 2 and gradients of 4 of 10 FP8 layers"));
  const std::string alone = remarks(1, "tensorwise",
                                    {"--quantize.linear.float8.enable_fsdp_float8_all_gather", "true",
                                     "--quantize.linear.float8.pad_vocabulary", "true",
                                     "--quantize.linear.float8.enable_float8_gradient_all_to_all", "true"});
  for (const char* line :
       {"FP8: enable_fsdp_float8_all_gather has no effect: parameters are not sharded (dp_shard 1)\n",
        "FP8: enable_tp_float8_all_gather has no effect: tensor_parallel_degree is 1\n",
        "FP8: enable_float8_gradient_all_to_all has no effect: parameters are not sharded (dp_shard 1)\n",
        "FP8: pad_vocabulary has no effect: it pads for FP8, and the output layer runs in bf16 (the output "
        "layer stays in high precision): an entry of quantize.linear.float8.policy with match output puts it "
        "in FP8\n"}) {
    CHECK_THAT(alone, Contains(line));
  }
  CHECK_THAT(
      remarks(1, "delayed",
              {"--training.steps", "16", "--quantize.linear.float8.amax_history_length", "16",
               "--quantize.linear.float8.margin", "1", "--quantize.linear.float8.fast_accumulation", "none"}),
      Contains("FP8: the amax history of recipe delayed, of 16 steps, does not fill in 16 steps: scales "
               "are each tensor's own throughout, as in tensorwise, and margin has no effect\n") &&
          Contains("FP8: fast_accumulation has no effect: a CPU sums in FP32\n"));
  CHECK_THAT(
      remarks(1, "delayed", {"--training.steps", "17", "--quantize.linear.float8.amax_history_length", "16"}),
      !Contains("the amax history of recipe delayed"));
  const std::string exchange = "--quantize.linear.float8.enable_float8_gradient_all_to_all";
  CHECK_THAT(remarks(2, "tensorwise", {exchange, "true"}),
             Contains("FP8: FSDP exchanges gradients in FP8: 16 all-to-alls, 0.8 MiB sent per step\n"));
  CHECK_THAT(
      remarks(2, "tensorwise",
              {exchange, "true", "--model.dim", "64", "--model.n_heads", "4", "--model.ffn_dim", "128"}),
      Contains("enable_float8_gradient_all_to_all has no effect: no matrix is large enough"));
  CHECK_THAT(remarks(1, "tensorwise",
                     {"--model.vocab_size", "2256", "--quantize.linear.float8.pad_vocabulary", "true",
                      "--quantize.linear.float8.policy", "[{match: output, recipe: tensorwise}]"}),
             Contains("pad_vocabulary has no effect: 2256 rows / tp 1 are a multiple of 16 already"));
  CHECK_THAT(remarks(2, "tensorwise",
                     {tp[0], tp[1], "--model.vocab_size", "2256", "--quantize.linear.float8.pad_vocabulary",
                      "true", "--quantize.linear.float8.policy", "[{match: output, recipe: tensorwise}]"}),
             !Contains("pad_vocabulary has no effect"));
}

TEST_CASE(
    "FP8 that no layer can run in, and validation batches that do not fit it, are refused with the "
    "arithmetic") {
  auto message = [](std::vector<std::string> more) {
    more.insert(more.end(), {"--model.converters", "[quantize.linear.float8]"});
    return test::message_of([&] { resolve_experiment(config_with(more), nullptr, 1); });
  };
  CHECK(message({}) == "no error");
  const std::string asked =
      "[fp8] model.converters contains quantize.linear.float8, but no layer can run in FP8: ";
  const std::string tokens = message({"--training.seq_len", "100"});
  CHECK_THAT(tokens,
             StartsWith(asked) &&
                 Contains("layers.0.attention.wqkv (100 tokens is not a multiple of 16 (100/16 = 6.25))") &&
                 EndsWith("or remove quantize.linear.float8 from model.converters"));
  CHECK_THAT(message({"--training.seq_len", "80", "--quantize.linear.float8.recipe_name", "mxfp8"}),
             StartsWith(asked) && Contains("80 tokens is not a multiple of 32 (80/32 = 2.5)"));
  CHECK_THAT(message({"--quantize.linear.float8.high_precision_first_blocks", "6"}),
             StartsWith(asked) && Contains("the first 6 blocks stay in high precision"));
  // Thresholds that were asked for may leave nothing, which is warned of; so is a recipe without the switch.
  const std::vector<std::string> small{"--model.ffn_dim", "512", "--quantize.linear.float8.filter_fqns",
                                       "auto_filter_small_kn"};
  CHECK(message(small) == "no error");
  std::vector<std::string> converted = small;
  converted.insert(converted.end(), {"--model.converters", "[quantize.linear.float8]"});
  const std::string warned = "WARNING - FP8: no layer runs in FP8, everything trains in bf16";
  CHECK_THAT(report(1, converted), Contains(warned));
  CHECK_THAT(report(1, {"--model.converters", "[quantize.linear.float8]"}), !Contains("WARNING"));
  const std::string off =
      "quantize.linear.float8: FP8 is off, because model.converters does not contain quantize.linear.float8";
  CHECK_THAT(report(1, small), Contains("INFO - " + off));
  CHECK_THAT(report(1, {"--quantize.linear.float8.recipe_name", "rowwise"}), Contains("WARNING - " + off));

  const std::vector<std::string> validated{"--validation.enable", "true", "--validation.local_batch_size",
                                           "3"};
  auto validating = [&](const char* tokens_each, const char* recipe) {
    std::vector<std::string> more = validated;
    more.insert(more.end(),
                {"--validation.seq_len", tokens_each, "--quantize.linear.float8.recipe_name", recipe});
    return message(more);
  };
  CHECK(validating("16", "tensorwise") == "no error");
  CHECK(validating("20", "tensorwise") ==
        "[fp8] validation.local_batch_size 3 x validation.seq_len 20 = 60 tokens are not a multiple of 16 "
        "(60/16 = 3.75), as layers.0.attention.wqkv in tensorwise requires: change one of the two");
  CHECK_THAT(validating("16", "mxfp8"), Contains("48 tokens are not a multiple of 32 (48/32 = 1.5)"));
}

TEST_CASE("the snapshot of asynchronous checkpoints is said, planned and refused where it does not fit") {
  const std::vector<std::string> saves{"--checkpoint.enable", "true", "--checkpoint.async_mode",
                                       "async_with_pinned_mem"};
  // Masters and two moments in f32: 12 bytes for each of 6,163,712 parameters, 70.5 MiB, and 4 MiB for gaps.
  CHECK_THAT(report(1, saves),
             Contains("Checkpoints: a snapshot of 74.5 MiB in host memory, copied between two "
                      "steps, written in the background\n"));
  CHECK_THAT(report(2, saves), Contains("a snapshot of 39.3 MiB in host memory"));
  CHECK_THAT(report(1, {}), !Contains("snapshot"));
  RankGroups alone = solo_rank_groups();
  const Config config = config_with(saves);
  const Experiment e = resolve_experiment(config, nullptr, 1);
  CHECK(snapshot_bytes(e, alone.coordinates) == 12 * parameter_count(e.shape.model) + (4 << 20));
  const StepPlan plan = record_step(e.shape, kCpu, alone);
  CHECK_NOTHROW(require_memory(e, plan.memory, kCpu, *alone.control, snapshot_bytes(e, alone.coordinates)));
  CHECK_THROWS_WITH(require_memory(e, plan.memory, kCpu, *alone.control, int64_t{1} << 50),
                    Contains("[memory] asynchronous checkpoints need 1048576.00 GiB of host memory for a "
                             "snapshot beside the step's ") &&
                        Contains("are free for this rank: set checkpoint.async_mode: disabled or "
                                 "optimizer.state_dtype: bfloat16, or shard over more ranks"));
}

TEST_CASE("a snapshot has room for the moments of every update rule, in their types") {
  for (const UpdateRuleTraits& rule : kUpdateRules) {
    for (const auto& [name, state] : {std::pair{"float32", DType::f32}, {"bfloat16", DType::bf16}}) {
      INFO(rule.name << " " << name);
      const Config config =
          config_with({"--optimizer.name", std::string(rule.name), "--optimizer.state_dtype", name,
                       "--checkpoint.enable", "true", "--checkpoint.async_mode", "async"});
      const Experiment e = resolve_experiment(config, nullptr, 1);
      int64_t expected = 4 << 20;
      for (const ParameterSpec& spec : parameter_table(e.shape).specs) {
        expected += 4 * spec.numel();
        for (const MomentTraits& m : moments_of(spec.rule))
          expected += (m.is_always_f32 || state == DType::f32 ? 4 : 2) * spec.numel();
      }
      CHECK(snapshot_bytes(e, {}) == expected);
    }
  }
}

TEST_CASE("the report says how Muon shares its matrices") {
  CHECK_THAT(report(8, {"--optimizer.name", "Muon", "--parallelism.tensor_parallel_degree", "2"}),
             Contains("Optimizer: Muon for 42 matrices of ") &&
                 Contains(" parameters, each worked on by one of 8 ranks, ") &&
                 Contains(" each way beside the work on others ("));
}

TEST_CASE(
    "a head count that transformers does not read in a Llama model is warned of where checkpoints are "
    "saved") {
  const auto text = [](std::vector<std::string> more) {
    more.insert(more.end(), {"--model.dim", "100", "--model.n_layers", "1", "--model.head_dim", "16"});
    return report(1, more);
  };
  const std::string warned =
      "WARNING - transformers will not load the checkpoints: dim 100 is not a multiple of n_heads 16";
  const std::vector<std::string> saves{"--checkpoint.enable", "true", "--model.n_heads"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), saves.begin(), saves.end());
    return text(more);
  };
  CHECK_THAT(with({"16"}), Contains(warned));
  CHECK_THAT(with({"20"}), !Contains("transformers"));
  CHECK_THAT(with({"16", "--model.qk_norm", "true"}), !Contains("transformers"));
  CHECK_THAT(text({"--model.n_heads", "16"}), !Contains("transformers"));
}

TEST_CASE(
    "a tokenizer for which transformers takes another in a Qwen2 model is warned of where checkpoints are "
    "saved") {
  const auto warnings = [](const char* tokenizer, const std::vector<std::string>& more) {
    const Experiment e = resolve_experiment(
        config_with(more), Tokenizer::load(std::string(OTTAVA_SOURCE_DIR "/") + tokenizer), 1);
    return fmt::format("{}", fmt::join(e.config.provenance.warnings, "\n"));
  };
  const char *ours = "configs/tokenizers/en-2256", *qwens = "tests/golden/tokenizer/qwen-style";
  const std::vector<std::string> saves{"--checkpoint.enable", "true", "--model.qkv_bias", "true"};
  CHECK_THAT(warnings(ours, saves), Contains("AutoTokenizer of transformers 5 will not make the tokens of"));
  CHECK_THAT(warnings(qwens, saves), !Contains("transformers"));
  CHECK_THAT(warnings(ours, {"--model.qkv_bias", "true"}), !Contains("transformers"));
  CHECK_THAT(warnings(ours, {"--checkpoint.enable", "true", "--model.qk_norm", "true"}),
             !Contains("transformers"));
}

TEST_CASE("the data line says what is read and how it becomes documents") {
  const TemporaryFolder folder;
  std::ofstream(folder / "a.txt") << std::string(2048, 'x');
  std::ofstream(folder / "b.jsonl") << "{\"body\": \"some text\"}\n";
  data::LoaderOptions options{.sources = {folder / "a.txt"}, .text_key = "body", .seq_len = 16};
  options.encoder.vocab_size = 256;
  options.encoder.encode = [](std::string_view text, std::vector<int32_t>& ids) {
    for (unsigned char c : text) ids.push_back(c);
  };
  data::TokenLoader plain(options);
  CHECK(data_text("books", plain) ==
        "books: 1 file, 2.0 KiB of text, shuffled; plain text becomes documents at <|endoftext|>, or "
        "without it, at blank lines, of at most 4.0 KiB; documents are put together without BOS and EOS; 1 "
        "thread, 1 "
        "segment ahead");
  std::vector<int32_t> inputs(16), targets(16);
  plain.read(120, 1, {inputs.data(), targets.data()});  // of the second epoch, so that the first is counted
  CHECK_THAT(data_text("books", plain), Contains(", 120 sequences of 16 tokens in each epoch, shuffled; "));

  options.sources.push_back(folder / "b.jsonl");
  options.order = data::Order::sequential;
  options.encoder.bos_id = 1;
  options.threads = 2;
  options.prefetch = 3;
  const std::string both = data_text("mine", data::TokenLoader(options));
  CHECK_THAT(both, StartsWith("mine: 2 files, 2.0 KiB of text, JSON lines, in the order of the files; "));
  CHECK_THAT(both, Contains("; each line of JSON is a document (\"body\"); each document begins with BOS;"));
  CHECK_THAT(both, EndsWith("; 2 threads, 3 segments ahead"));
  options.encoder.bos_is_eos = true;
  CHECK_THAT(data_text("mine", data::TokenLoader(options)),
             Contains("; each document begins with BOS, which is also EOS; "));
}
