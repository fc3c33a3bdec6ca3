#include "apps/config/experiment.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "apps/config/resolved_float8.h"
#include "apps/config/resolved_layout.h"
#include "apps/config/resolved_optimizer.h"
#include "core/config/section.h"
#include "core/data/chat/conversation.h"
#include "core/data/data_file.h"
#include "core/error.h"
#include "core/io/file.h"
#include "core/ops/attention/attention.h"
#include "models/llama/read_hf_config.h"
#include "models/llama/recompute.h"
#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/snapshot.h"

namespace ottava {
namespace {

// `auto` is settled later (settle_decisions()); until then it has the value that holds where nothing is
// measured.
cpu::ProductChoice resolve_products(const CpuConfig& c) {
  using cpu::Bf16Products;
  using Wish = CpuConfig::Products;
  const auto way = [](Wish wish, Bf16Products usual) {
    return wish == Wish::automatic ? usual
           : wish == Wish::direct  ? Bf16Products::direct
                                   : Bf16Products::widened;
  };
  const cpu::ProductChoice usual = cpu::usual_products();
  return {.matmul = way(c.bf16_matmul, usual.matmul), .attention = way(c.bf16_attention, usual.attention)};
}

void check_gpu_head_dim(int64_t head_dim) {
  if (takes_head_dim(DeviceType::cuda, head_dim)) return;
  fail<ConfigError>("model",
                    "head_dim is {}, but attention on a GPU supports 16, 32, 64 and 128: choose one of "
                    "these, or set training.device to cpu",
                    head_dim);
}

// transformers refuses the config.json of such a Llama whatever its head_dim; it reads those of Qwen.
void warn_of_heads(Experiment& e) {
  const LlamaConfig& m = e.shape.model;
  if (!e.config.checkpoint.enable || m.dim % m.heads == 0 || hf_family_of(m) != HfFamily::llama) return;
  e.config.provenance.warnings.push_back(
      fmt::format("transformers will not load the checkpoints: dim {} is not a multiple of n_heads {}, as it "
                  "requires of Llama models: change one of them, or set model.qk_norm: true (Qwen3's block)",
                  m.dim, m.heads));
}

// transformers 5 takes its own class for the tokenizer of a Qwen2 model, whatever the folder names.
void warn_of_tokenizer(Experiment& e) {
  if (!e.config.checkpoint.enable || !e.tokenizer || e.tokenizer->cuts_as_qwen2() ||
      hf_family_of(e.shape.model) != HfFamily::qwen2) {
    return;
  }
  e.config.provenance.warnings.push_back(
      "AutoTokenizer of transformers 5 will not make the tokens of this tokenizer.json from texts: of a "
      "Qwen2 model (model.qkv_bias) it cuts all texts by Qwen's own pattern; load the checkpoints' tokenizer "
      "with PreTrainedTokenizerFast there");
}

}  // namespace

std::shared_ptr<const Tokenizer> load_tokenizer(const Config& config) {
  return Tokenizer::load(find_assets(config));
}

bool texts_begin_with_bos(const Experiment& e) {
  const TrainingConfig& t = e.config.training;
  const std::vector<std::string> formats = formats_of(t);
  const auto has_its_own = [](const std::string& format) {
    const std::optional<data::Format> known = data::format_named(format);
    return data::chat_format_named(format) || (known && data::is_tokenized(*known));
  };
  if (std::ranges::all_of(formats, has_its_own)) return e.tokenizer->adds_bos();
  return t.add_bos && e.tokenizer->bos_id();
}

Experiment resolve_experiment(const Config& c, std::shared_ptr<const Tokenizer> tokenizer, int world_size,
                              std::optional<int> compute_capability) {
  Mesh mesh(mesh_degrees(c), world_size);
  const Batches batches = resolve_batches(c, mesh);
  TrainingShape shape;
  resolve_samples(c, mesh, shape);
  std::vector<ModelValue> model_values;
  shape.model = resolved_model(c, tokenizer.get(), &model_values);
  // It goes by the prompts' bytes; encode_prompts() counts their tokens.
  shape.sample_length =
      std::min(shape.sample_length, shape.model.sliding_window.value_or(shape.sample_length));
  const int64_t longest =
      std::max({c.training.seq_len, c.validates() ? c.validation.seq_len : 0, shape.sample_length});
  if (compute_capability) check_gpu_head_dim(shape.model.head_dim);
  check_context_parallel(c, mesh.size(MeshAxis::cp));
  check_tensor_parallel(shape.model, c, mesh.size(MeshAxis::tp), mesh.size(MeshAxis::cp));
  shape.model_options = {
      .sequence = longest,
      .loss_chunk_rows = c.model.loss_chunk_tokens > 0 ? c.model.loss_chunk_tokens : kFewestLossTokens,
      .loss_parallel = !c.parallelism.disable_loss_parallel,
      .z_loss_weight = static_cast<float>(c.training.z_loss_weight),
      .recompute = resolve_recompute(c.activation_checkpoint, shape.model.layers)};
  shape.parameters = resolve_fsdp(c);
  shape.cpu_products = resolve_products(c.cpu);
  shape.batch = c.training.local_batch_size;
  shape.sequence = c.training.seq_len;
  shape.micro_batches = batches.micro_batches;
  resolve_pipeline(c, mesh.size(MeshAxis::pp), shape);
  shape.validation_batch = c.validates() ? c.validation.local_batch_size : 0;
  shape.validation_sequence = c.validation.seq_len;
  shape.block_causal = c.model.attn_mask_type == ModelConfig::AttnMask::block_causal;
  shape.sequence_losses = !c.training.mixture.empty();
  resolve_optimizer(c.optimizer, c.training.seed, shape);
  shape.spikes = {.window = c.training.skip_spikes.window, .sigma = c.training.skip_spikes.sigma};
  shape.max_norm = static_cast<float>(std::min(c.training.max_norm, config::kMostFloat));
  const LlamaParameters table = llama_parameters(shape.model);
  shape.groups = resolve_groups(c.optimizer, table.specs);
  if (c.model.uses_float8()) resolve_float8(c, table, mesh, compute_capability, nullptr, shape);
  if (shape.prompts > 0 && shape.float8.output.float8) {
    fail<ConfigError>("evaluation",
                      "prompts are not supported with the output layer in FP8: remove evaluation.prompts, "
                      "and run ottava generate on the checkpoints");
  }
  const bool graphs = compute_capability && c.training.cuda_graphs != TrainingConfig::CudaGraphs::off &&
                      !shape.pipeline.is_on();
  shape.parameters.reductions_cross = reductions_cross(shape.parameters, graphs);
  Experiment e{.config = c,
               .tokenizer = std::move(tokenizer),
               .mesh = mesh,
               .shape = std::move(shape),
               .model_values = std::move(model_values),
               .global_batch = batches.global,
               .compute_capability = compute_capability};
  warn_of_heads(e);
  warn_of_tokenizer(e);
  if (c.parallelism.enable_async_tensor_parallel && e.mesh.size(MeshAxis::tp) > 1)
    e.shape.model_options.overlap = {Overlap::blocks, Overlap::blocks, Overlap::blocks, Overlap::blocks};
  if (leaves_reduction_open(e)) e.shape.parameters.reduce_every_micro_batch = false;
  e.shape.parameters.keeps_float8_codes =
      leaves_weight_codes_open(e) || c.float8.keep_weight_codes == Float8Config::KeepCodes::yes;
  return e;
}

bool leaves_reduction_open(const Experiment& e) {
  return e.config.parallelism.fsdp_reduce_every_microbatch == ParallelismConfig::Reduce::automatic &&
         !e.shape.pipeline.is_on() && e.shape.micro_batches > 1 && e.mesh.shards() > 1;
}

bool leaves_recompute_open(const Experiment& e) {
  return e.config.activation_checkpoint.mode == ActivationCheckpointConfig::Mode::automatic;
}

Decisions read_auto_decisions(const Config& c) {
  const std::string path =
      find_input(c, "quantize.linear.float8.auto_decisions", c.float8.auto_decisions).string();
  return parse_decisions(read_file(path), path);
}

std::string model_title(const ModelConfig& c) {
  const bool changed = c.dim || c.n_layers || c.n_heads || c.n_kv_heads || c.head_dim || c.ffn_dim ||
                       c.ffn_dim_multiplier || c.multiple_of;
  if (c.flavor == "hf") return fmt::format("from config.json{}", changed ? " with other dimensions" : "");
  if (c.dim) return fmt::format("{} of one's own", c.name);
  return fmt::format("{} {}{}", c.name, c.flavor, changed ? " with other dimensions" : "");
}

bool saves_asynchronously(const CheckpointConfig& c) {
  return c.enable && !c.load_only && c.async_mode != CheckpointConfig::Async::disabled;
}

int64_t snapshot_bytes(const Experiment& e, const ShardCoordinates& at) {
  if (!saves_asynchronously(e.config.checkpoint)) return 0;
  std::vector<ParameterSpec> specs = parameter_table(e.shape).specs;
  align_shards(specs, e.shape.parameters);
  std::vector<checkpoint::HeldShard> shards(specs.size());
  for (size_t p = 0; p < specs.size(); ++p) {
    for (const MomentTraits& m : moments_of(specs[p].rule))
      shards[p].moments[m.moment].dtype = m.dtype(e.shape.parameters.optimizer_state);
  }
  return checkpoint::Snapshot::kGapBytes +
         checkpoint::owned_bytes({.specs = specs, .at = at, .shards = std::move(shards)});
}

}  // namespace ottava
