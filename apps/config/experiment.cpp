#include "apps/config/experiment.h"

#include <algorithm>
#include <filesystem>

#include "apps/decide/float8_speedup.h"
#include "core/counted.h"
#include "core/error.h"
#include "core/glob.h"
#include "core/io/file.h"
#include "parallel/checkpoint/contents.h"
#include "parallel/comm/dry_run/dry_run_communicator.h"

namespace ottava {
namespace {

struct Batches {
  int64_t global, micro_batches;
};

Batches resolve_batches(const Config& c, const Mesh& mesh) {
  const int64_t ranks =
      static_cast<int64_t>(mesh.size(MeshAxis::dp_replicate)) * mesh.size(MeshAxis::dp_shard);
  const int64_t local = c.training.local_batch_size, together = local * ranks;
  const int64_t global = c.training.global_batch_size < 0 ? together : c.training.global_batch_size;
  if (global % together != 0 || global < together) {
    fail<ConfigError>("training",
                      "global_batch_size {} is not a multiple of local_batch_size {} x {} data-parallel "
                      "ranks = {} (remainder {})",
                      global, local, ranks, together, global % together);
  }
  return {global, global / together};
}

UpdateRule rule_of(const std::string& name, size_t group, const ParameterSpec& spec) {
  if (name == "AdamW") return UpdateRule::adamw;
  if (spec.is_vector) {
    fail<ConfigError>(
        "optimizer",
        "param_groups entry {} gives {} to Muon, which orthogonalises matrices: it is a vector of "
        "{}, leave it to AdamW",
        group + 1, spec.name, counted(spec.rows(), "element"));
  }
  return UpdateRule::muon;
}

// Per parameter of the table; a fused parameter takes the group of its own name or of its first part.
std::vector<ParameterTraining> resolve_groups(const OptimizerConfig& c,
                                              const std::vector<ParameterSpec>& specs) {
  std::vector<ParameterTraining> out;
  std::vector<bool> used(c.param_groups.size(), false);
  for (const ParameterSpec& spec : specs) {
    ParameterTraining training{static_cast<float>(c.weight_decay), 1.0f, UpdateRule::adamw};
    if (c.name == "Muon" && spec.role == ParameterRole::linear) training.rule = UpdateRule::muon;
    for (size_t g = 0; g < c.param_groups.size(); ++g) {
      const ParamGroupConfig& group = c.param_groups[g];
      if (!glob_matches(group.match, spec.name) && !glob_matches(group.match, spec.parts[0].hf_name))
        continue;
      used[g] = true;
      training.weight_decay = static_cast<float>(group.weight_decay.value_or(c.weight_decay));
      training.lr_factor = static_cast<float>(group.lr_factor);
      if (group.optimizer_name) training.rule = rule_of(*group.optimizer_name, g, spec);
      break;
    }
    out.push_back(training);
  }
  for (size_t g = 0; g < used.size(); ++g) {
    if (!used[g])
      fail<ConfigError>(
          "optimizer",
          "param_groups entry {} matches no parameter: '{}'; names look like layers.0.attention_norm", g + 1,
          c.param_groups[g].match);
  }
  return out;
}

// What is `auto` is settled later (settle_decisions); until then it is what holds where nothing is measured.
cpu::ProductChoice resolve_products(const CpuConfig& c) {
  using cpu::Bf16Products;
  const auto way = [](const std::string& wish, Bf16Products usual) {
    return wish == "auto" ? usual : wish == "direct" ? Bf16Products::direct : Bf16Products::widened;
  };
  const cpu::ProductChoice usual = cpu::usual_products();
  return {.matmul = way(c.bf16_matmul, usual.matmul), .attention = way(c.bf16_attention, usual.attention)};
}

MuonOptions resolve_muon(const OptimizerConfig& c) {
  MuonOptions out;
  out.hyper.momentum = static_cast<float>(c.momentum);
  out.hyper.nesterov = c.nesterov;
  out.hyper.steps = static_cast<int>(c.ns_steps);
  std::ranges::transform(c.newton_schulz_coefficients(), out.hyper.coefficients.begin(),
                         [](double x) { return static_cast<float>(x); });
  out.adjust = c.adjust_lr_fn == OptimizerConfig::AdjustLr::original ? MuonOptions::Adjust::original
                                                                     : MuonOptions::Adjust::match_rms_adamw;
  out.precision = c.ns_dtype;
  return out;
}

FsdpOptions resolve_fsdp(const Config& c) {
  using Reshard = ParallelismConfig::Reshard;
  using Reduce = ParallelismConfig::Reduce;
  FsdpOptions out;
  // training.dtype bfloat16 is TorchTitan's all-BF16 mode; here masters stay FP32 and only the moments are
  // halved.
  out.compute = c.training.mixed_precision_param;
  out.reduce = c.training.mixed_precision_reduce;
  out.optimizer_state = c.optimizer.state_dtype;
  switch (c.parallelism.fsdp_reshard_after_forward) {
    case Reshard::automatic:
      out.reshard = FsdpOptions::Reshard::automatic;
      break;
    case Reshard::always:
      out.reshard = FsdpOptions::Reshard::always;
      break;
    case Reshard::never:
      out.reshard = FsdpOptions::Reshard::never;
      break;
  }
  out.prefetch = static_cast<int>(c.parallelism.fsdp_prefetch);
  out.reduce_every_micro_batch = c.parallelism.fsdp_reduce_every_microbatch != Reduce::once_per_step;
  return out;
}

void check_context_parallel(const Config& c, int cp) {
  if (cp == 1) return;
  const int64_t unit = context_parallel_unit(cp);
  const auto divides = [&](std::string_view key, int64_t tokens) {
    if (tokens % unit == 0) return;
    fail<ConfigError>("parallelism",
                      "context_parallel_degree {} makes {} chunks of {} {}, which must be whole multiples of "
                      "{} tokens: use a multiple of {}, such as {}",
                      cp, 2 * cp, key, tokens, unit / (2 * cp), unit, (tokens + unit - 1) / unit * unit);
  };
  divides("training.seq_len", c.training.seq_len);
  if (c.validation.enable) divides("validation.seq_len", c.validation.seq_len);
}

void check_tensor_parallel(const LlamaConfig& m, const Config& c, int tp, int cp) {
  if (tp == 1) return;
  auto divides = [&](std::string_view name, int64_t value) {
    if (value % tp != 0)
      fail<ConfigError>("parallelism", "tensor_parallel_degree {} does not divide {} {} (remainder {})", tp,
                        name, value, value % tp);
  };
  divides("n_heads", m.heads);
  divides("ffn_dim", m.ffn_dim);
  divides("vocab_size", m.vocab_size);
  const bool is_pipeline = c.parallelism.pipeline_parallel_degree > 1;
  divides(
      fmt::format("{} x seq_len{} =", is_pipeline ? "pipeline_parallel_microbatch_size" : "local_batch_size",
                  cp == 1 ? "" : " / context_parallel_degree"),
      (is_pipeline ? c.parallelism.pipeline_parallel_microbatch_size : c.training.local_batch_size) *
          c.training.seq_len / cp);
  if (m.kv_heads % tp != 0 && tp % m.kv_heads != 0) {
    fail<ConfigError>("parallelism",
                      "tensor_parallel_degree {} neither divides n_kv_heads {} nor is a multiple of it", tp,
                      m.kv_heads);
  }
}

// The micro-batches of all accumulation rounds go through the pipeline together.
void resolve_pipeline(const Config& c, int ranks, TrainingShape& shape) {
  const ParallelismConfig& p = c.parallelism;
  if (ranks == 1) return;
  auto refuse = [&](std::string_view what) {
    fail<ConfigError>("pipeline", "pipeline_parallel_degree is {}, {}", ranks, what);
  };
  if (shape.model.tied_embeddings)
    refuse(
        "and the model ties its output to its embedding, which lie in different stages: untie them, or use "
        "data and tensor parallel");
  if (p.fsdp_reshard_after_forward == ParallelismConfig::Reshard::always)
    refuse(
        "and fsdp_reshard_after_forward is always: the weights of a stage stay whole for the step, set it to "
        "default or never");
  if (p.fsdp_reduce_every_microbatch == ParallelismConfig::Reduce::every_microbatch)
    refuse(
        "and fsdp_reduce_every_microbatch is true: a stage's gradients are summed once, after its last "
        "backward; set it to auto or false");
  if (c.training.local_batch_size % p.pipeline_parallel_microbatch_size != 0)
    fail<ConfigError>(
        "pipeline",
        "local_batch_size {} is not a multiple of pipeline_parallel_microbatch_size {} (remainder {})",
        c.training.local_batch_size, p.pipeline_parallel_microbatch_size,
        c.training.local_batch_size % p.pipeline_parallel_microbatch_size);
  shape.micro_batches *= c.training.local_batch_size / p.pipeline_parallel_microbatch_size;
  shape.batch = p.pipeline_parallel_microbatch_size;
  const ScheduleKind schedule = schedule_named(p.pipeline_parallel_schedule);
  std::vector<StageUnits> stages = split_stages({.layers = shape.model.layers,
                                                 .ranks = ranks,
                                                 .is_looped = is_looped(schedule),
                                                 .layers_per_stage = p.pipeline_parallel_layers_per_stage,
                                                 .first_less = p.pipeline_parallel_first_stage_less_layers,
                                                 .last_less = p.pipeline_parallel_last_stage_less_layers,
                                                 .split_points = p.pipeline_parallel_split_points});
  shape.pipeline = {.shape = {.schedule = schedule,
                              .ranks = ranks,
                              .chunks = static_cast<int>(stages.size()) / ranks,
                              .micro_batches = static_cast<int>(shape.micro_batches)},
                    .stages = std::move(stages)};
  if (const std::string complaint = complaint_about(shape.pipeline.shape); !complaint.empty())
    fail<ConfigError>("pipeline", "{}", complaint);
  shape.parameters.reshard = FsdpOptions::Reshard::never;
  shape.parameters.reduce_every_micro_batch = false;
}

// Where `auto` finds its ratios. Those of a GPU or of a file are settled later (settle_decisions); until then
// every candidate runs in FP8.
std::function<std::optional<double>(const fp8::PolicyGemm&, const fp8::Recipe&)> speedups(
    const Config& c, const Decisions* measured, bool on_gpu, int64_t tokens) {
  if (!c.float8.automatic) return {};
  if (measured) return speedups_of(*measured, tokens, c.float8.auto_decisions);
  if (on_gpu || !c.float8.auto_decisions.empty())
    return [](const fp8::PolicyGemm&, const fp8::Recipe&) { return std::nullopt; };
  return {};
}

// Validation runs the same products on batches of its own.
void check_validation_tokens(const TrainingShape& shape, int cp) {
  const int64_t tokens = shape.validation_batch * shape.validation_sequence / cp;
  for (const fp8::GemmDecision& d : shape.float8_policy.decisions) {
    if (!d.recipe || tokens % d.recipe->alignment() == 0) continue;
    fail<ConfigError>(
        "fp8",
        "validation.local_batch_size {} x validation.seq_len {}{} = {} tokens are not a multiple "
        "of {} ({}/{} = "
        "{:.6g}), which {} in {} needs: change one of the two",
        shape.validation_batch, shape.validation_sequence,
        cp == 1 ? "" : fmt::format(" / context_parallel_degree {}", cp), tokens, d.recipe->alignment(),
        tokens, d.recipe->alignment(),
        static_cast<double>(tokens) / static_cast<double>(d.recipe->alignment()), d.gemm.name,
        fp8::name_of(d.recipe->name));
  }
}

bool gathers_values(const Experiment& e, const Float8WeightSpec& weight) {
  const ParameterSpec spec = llama_parameters(e.shape.model).specs[static_cast<size_t>(weight.parameter)];
  return !float8_weight_travel(weight, tensor_parallel_shape(spec, e.mesh.size(MeshAxis::tp))[0],
                               e.mesh.shards())
              .in_codes;
}

struct Tokens {
  int64_t count;
  std::string_view of;
};

// Logits are made for so many tokens at a time; the last chunk has what is left.
void check_output_chunks(const fp8::GemmDecision& output, int64_t chunk_tokens, const Tokens& tokens) {
  const int64_t chunk = std::min(chunk_tokens, tokens.count), of = output.recipe->alignment();
  for (const int64_t rows : {chunk, tokens.count % chunk}) {
    if (rows % of == 0) continue;
    fail<ConfigError>("fp8",
                      "the output layer in FP8 runs the {} tokens of {} {} at a time{}, not a multiple of {} "
                      "({}/{} = {:.6g}): set model.loss_chunk_tokens to one",
                      tokens.count, tokens.of, chunk,
                      rows == chunk ? "" : fmt::format(" and {} at last", rows), of, rows, of,
                      static_cast<double>(rows) / static_cast<double>(of));
  }
}

void resolve_float8(const Config& c, const LlamaParameters& table, const Mesh& mesh,
                    std::optional<int> compute_capability, const Decisions* measured, TrainingShape& shape) {
  const int tp = mesh.size(MeshAxis::tp), cp = mesh.size(MeshAxis::cp);
  const int64_t tokens = shape.batch * shape.sequence / cp;
  fp8::PolicyInputs inputs = llama_policy_inputs(table, tp, tokens);
  if (compute_capability) inputs.hardware = fp8::recipes_of_compute_capability(*compute_capability);
  inputs.measured_speedup = speedups(c, measured, compute_capability.has_value(), tokens);
  inputs.is_measured_elsewhere = !c.float8.auto_decisions.empty();
  shape.float8_policy = fp8::decide_policy(c.float8, inputs);
  const auto has_history = [](const fp8::GemmDecision& d) { return d.recipe && d.recipe->has_history(); };
  if (shape.pipeline.is_on() && std::ranges::any_of(shape.float8_policy.decisions, has_history))
    fail<ConfigError>(
        "fp8",
        "recipe delayed takes its scales from amaxes of all layers on all ranks, and the stages of a "
        "pipeline hold some of them: take tensorwise or rowwise, or pipeline_parallel_degree 1");
  fp8::require_some_float8(shape.float8_policy, c.float8);
  check_validation_tokens(shape, cp);
  shape.float8 = llama_float8(table, shape.float8_policy, c.float8, tp);
  shape.parameters.float8 = shape.float8.weights;
  shape.parameters.float8_gradients = c.float8.enable_float8_gradient_all_to_all && shape.float8.is_on();
  const fp8::GemmDecision* output = shape.float8_policy.find("output");
  if (!output || !output->recipe) return;
  check_output_chunks(*output, shape.model_options.loss_chunk_rows, {tokens, "a step"});
  if (shape.validation_batch > 0) {
    check_output_chunks(*output, shape.model_options.loss_chunk_rows,
                        {shape.validation_batch * shape.validation_sequence / cp, "validation"});
  }
  if (output->padded_rows > 0 && c.parallelism.disable_loss_parallel && tp > 1) {
    fail<ConfigError>("fp8",
                      "quantize.linear.float8.pad_vocabulary pads the logits of every rank, which "
                      "parallelism.disable_loss_parallel would gather: leave one of them out");
  }
}

}  // namespace

std::shared_ptr<const Tokenizer> load_tokenizer(const Config& config) {
  return Tokenizer::load(find_assets(config));
}

MeshDegrees mesh_degrees(const Config& c) {
  return {.pp = static_cast<int>(c.parallelism.pipeline_parallel_degree),
          .dp_replicate = static_cast<int>(c.parallelism.data_parallel_replicate_degree),
          .dp_shard = static_cast<int>(c.parallelism.data_parallel_shard_degree),
          .cp = static_cast<int>(c.parallelism.context_parallel_degree),
          .tp = static_cast<int>(c.parallelism.tensor_parallel_degree)};
}

Experiment resolve_experiment(const Config& c, std::shared_ptr<const Tokenizer> tokenizer, int world_size,
                              std::optional<int> compute_capability) {
  Mesh mesh(mesh_degrees(c), world_size);
  const Batches batches = resolve_batches(c, mesh);
  const int64_t longest =
      std::max(c.training.seq_len, c.validation.enable || c.evaluation.enable ? c.validation.seq_len : 0);
  TrainingShape shape;
  std::vector<ModelValue> model_values;
  shape.model = resolved_model(c, tokenizer.get(), &model_values);
  for (const auto& [axis, name] : {std::pair{MeshAxis::pp, "pipeline"}, std::pair{MeshAxis::cp, "context"}}) {
    if (c.evaluation.enable && mesh.size(axis) > 1) {
      fail<ConfigError>(
          "evaluation",
          "tasks are not evaluated with {} parallel (degree {}): leave out evaluation.enable, and run ottava "
          "eval on the checkpoints",
          name, mesh.size(axis));
    }
  }
  check_context_parallel(c, mesh.size(MeshAxis::cp));
  check_tensor_parallel(shape.model, c, mesh.size(MeshAxis::tp), mesh.size(MeshAxis::cp));
  shape.model_options = {.sequence = longest,
                         .loss_chunk_rows = c.model.loss_chunk_tokens > 0 ? c.model.loss_chunk_tokens : 1024,
                         .loss_parallel = !c.parallelism.disable_loss_parallel,
                         .z_loss_weight = static_cast<float>(c.training.z_loss_weight),
                         .recompute = resolve_recompute(c.activation_checkpoint, shape.model.layers)};
  shape.parameters = resolve_fsdp(c);
  shape.cpu_products = resolve_products(c.cpu);
  shape.batch = c.training.local_batch_size;
  shape.sequence = c.training.seq_len;
  shape.micro_batches = batches.micro_batches;
  resolve_pipeline(c, mesh.size(MeshAxis::pp), shape);
  shape.validation_batch = c.validation.enable || c.evaluation.enable ? c.validation.local_batch_size : 0;
  shape.validation_sequence = c.validation.seq_len;
  shape.block_causal = c.model.attn_mask_type == ModelConfig::AttnMask::block_causal;
  shape.sequence_losses = !c.training.mixture.empty();
  shape.adamw = {.beta1 = static_cast<float>(c.optimizer.beta1),
                 .beta2 = static_cast<float>(c.optimizer.beta2),
                 .eps = static_cast<float>(c.optimizer.eps),
                 .seed = static_cast<uint64_t>(c.training.seed)};
  shape.spikes = {.window = c.training.skip_spikes.window, .sigma = c.training.skip_spikes.sigma};
  shape.muon = resolve_muon(c.optimizer);
  shape.max_norm = static_cast<float>(c.training.max_norm);
  const LlamaParameters table = llama_parameters(shape.model);
  shape.groups = resolve_groups(c.optimizer, table.specs);
  if (c.model.uses_float8()) resolve_float8(c, table, mesh, compute_capability, nullptr, shape);
  const bool graphs = compute_capability && c.training.cuda_graphs != "off" && !shape.pipeline.is_on();
  shape.parameters.reductions_cross = reductions_cross(shape.parameters, graphs);
  Experiment e{.config = c,
               .tokenizer = std::move(tokenizer),
               .mesh = mesh,
               .shape = std::move(shape),
               .model_values = std::move(model_values),
               .decisions = {},
               .global_batch = batches.global,
               .compute_capability = compute_capability};
  if (leaves_reduction_open(e)) e.shape.parameters.reduce_every_micro_batch = false;
  e.shape.parameters.keeps_float8_codes =
      leaves_weight_codes_open(e) || c.float8.keep_weight_codes == Float8Config::KeepCodes::yes;
  return e;
}

bool leaves_reduction_open(const Experiment& e) {
  return e.config.parallelism.fsdp_reduce_every_microbatch == ParallelismConfig::Reduce::automatic &&
         !e.shape.pipeline.is_on() && e.shape.micro_batches > 1 && e.mesh.shards() > 1;
}

bool leaves_weight_codes_open(const Experiment& e) {
  const auto& weights = e.shape.parameters.float8.specs;
  return e.config.float8.keep_weight_codes == Float8Config::KeepCodes::automatic && e.mesh.shards() > 1 &&
         e.shape.parameters.reshard != FsdpOptions::Reshard::never &&
         std::ranges::any_of(weights, [&](const auto& weight) { return gathers_values(e, weight); });
}

bool reductions_cross(const FsdpOptions& options, bool graphs) {
  return !graphs && options.reshard == FsdpOptions::Reshard::never;
}

void apply_measured_float8(Experiment& e, const Decisions& measured) {
  resolve_float8(e.config, llama_parameters(e.shape.model), e.mesh, e.compute_capability, &measured, e.shape);
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

double StepPlan::flops(Precision precision) const {
  double sum = 0;
  for (const CostRecorder::Total& total : costs) sum += total.precision == precision ? total.flops : 0;
  return sum;
}

bool saves_asynchronously(const CheckpointConfig& c) {
  return c.enable && !c.load_only && c.async_mode != CheckpointConfig::Async::disabled;
}

int64_t snapshot_bytes(const Experiment& e, const ShardCoordinates& at) {
  if (!saves_asynchronously(e.config.checkpoint)) return 0;
  std::vector<ParameterSpec> specs = parameter_table(e.shape).specs;
  align_shards(specs, e.shape.parameters);
  const checkpoint::ShardMemory moment{.dtype = e.shape.parameters.optimizer_state};
  return checkpoint::owned_bytes(
      {.specs = specs,
       .at = at,
       .shards = std::vector<checkpoint::ParameterShard>(
           specs.size(), {.weight = {}, .exp_avg = moment, .exp_avg_sq = moment, .momentum = {}})});
}

WeightQuantizing weight_quantizing(const StepPlan& plan) {
  WeightQuantizing out;
  for (const CostRecorder::Total& t : plan.costs) {
    if (t.op != "quantize" || !t.label.ends_with(kGatheredWeights)) continue;
    out.calls += t.calls;
    out.bytes += t.bytes;
  }
  return out;
}

namespace {

// "" where all codes are made of shards, or weights stay whole.
std::string weight_codes_text(const Experiment& e, const StepPlan& plan) {
  const FsdpOptions& fsdp = e.shape.parameters;
  std::vector<std::string> names;
  for (const Float8WeightSpec& weight : fsdp.float8.specs) {
    if (gathers_values(e, weight)) names.push_back(weight.name + ".");
  }
  const bool has_choice =
      e.mesh.shards() > 1 && !names.empty() && fsdp.reshard != FsdpOptions::Reshard::never;
  if (!has_choice) {
    const bool is_asked_for = e.config.float8.keep_weight_codes != Float8Config::KeepCodes::automatic;
    return is_asked_for
               ? "keep_weight_codes changes nothing: no FP8 weight is gathered in the compute type and let "
                 "go within a step"
               : "";
  }
  const WeightQuantizing made = weight_quantizing(plan);
  const double gib = made.bytes / (1 << 30);
  if (!fsdp.keeps_float8_codes) {
    return fmt::format(
        "codes of {} gathered weights are made again after every gather: {} quantizations of {:.3f} GiB read "
        "and "
        "written per step",
        names.size(), made.calls, gib);
  }
  int64_t bytes = 0;
  for (const PlannedAllocation& a : plan.memory.persistent) {
    const bool is_kept =
        std::ranges::any_of(names, [&](const auto& name) { return a.name.starts_with(name); });
    if (is_kept && a.name.find(".fp8") != std::string::npos) bytes += a.bytes;
  }
  return fmt::format(
      "codes of {} gathered weights are kept through the step, {:.3f} GiB: {} quantizations of {:.3f} GiB "
      "read and "
      "written per step",
      names.size(), static_cast<double>(bytes) / (1 << 30), made.calls, gib);
}

}  // namespace

std::vector<std::string> float8_remarks(const Experiment& e, const StepPlan& plan) {
  if (!e.shape.float8.is_on()) return {};
  std::vector<std::string> lines = float8_remarks(
      e.shape.float8_policy, e.config.float8,
      {.shards = e.mesh.shards(), .tensor_parallel = e.mesh.size(MeshAxis::tp), .traffic = plan.traffic});
  if (std::string codes = weight_codes_text(e, plan); !codes.empty()) lines.push_back(std::move(codes));
  return lines;
}

StepPlan record_step(const TrainingShape& shape, Device target, RankGroups& ranks) {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, target);
  Arena arena;
  TrainingEngine engine(shape, stream, arena, ranks, 0);
  ranks.world->stats().reset();
  engine.train_step({}, {});
  StepPlan plan{.memory = {},
                .costs = recorder.totals(),
                .operations = recorder.operations(),
                .order = recorder.order(),
                .traffic = ranks.world->stats()};
  if (shape.validation_batch > 0) engine.validate({});
  plan.matmul_workspace_bytes = recorder.workspace_bytes();
  plan.memory = arena.plan();
  plan.memory.resize_persistent("matmul workspace", plan.matmul_workspace_bytes);
  return plan;
}

std::vector<StepProfile::Span> record_spans(const TrainingShape& shape, Device target, RankGroups& ranks) {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, target);
  Arena arena;
  TrainingEngine engine(shape, stream, arena, ranks, 0);
  StepProfile profile(stream);
  engine.train_step({}, {}, &profile);
  return profile.take_spans(DeviceClock(stream));
}

StepPlan record_first_rank(const TrainingShape& shape, Device target, const Mesh& mesh) {
  return record_rank(shape, target, mesh, 0);
}

StepPlan record_rank(const TrainingShape& shape, Device target, const Mesh& mesh, int rank) {
  const int size = mesh.world_size();
  RankGroups ranks(make_dry_run_world(rank, size), make_dry_run_world(rank, size), mesh);
  return record_step(shape, target, ranks);
}

}  // namespace ottava
