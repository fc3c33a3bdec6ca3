#include "apps/commands/plan_command.h"

#include <fmt/ostream.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <ostream>
#include <span>

#include "apps/commands/command_line.h"
#include "apps/commands/given_output.h"
#include "apps/commands/json_file.h"
#include "apps/commands/plan_json.h"
#include "apps/commands/plan_text.h"
#include "apps/config/planned_experiment.h"
#include "apps/config/resolved_model.h"
#include "apps/config/sm_budget.h"
#include "apps/data/chat_data.h"
#include "apps/decide/attention_choice.h"
#include "apps/decide/cpu_products.h"
#include "apps/decide/decide.h"
#include "apps/devices/device_table.h"
#include "apps/predict/decided_step.h"
#include "apps/predict/predicted_trace.h"
#include "apps/predict/sample_step.h"
#include "apps/predict/step_time.h"
#include "apps/report/float8_remarks.h"
#include "apps/report/optimizer_text.h"
#include "apps/step/step_graphs.h"
#include "core/contains.h"
#include "core/cuda/blas_plans.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/io/folder.h"
#include "core/io/gzip.h"
#include "core/io/output_file.h"
#include "core/metrics/step_line.h"
#include "core/text/counted.h"
#include "core/text/gib.h"
#include "core/threads/threads_for.h"
#include "parallel/ranks/cpu_share.h"
#include "parallel/ranks/world.h"

namespace ottava {
namespace {

using fmt::print;

constexpr int kLayoutsShown = 10;  // by --search, unless asked for more

// What memory decides, and what is left to the start of the run: the step of every outcome, each of the rank
// that is then the fullest.
void print_decisions(const Experiment& e, Device device, const RecordedLayout& planned,
                     const Machine* machine, std::ostream& out) {
  size_t width = 20;
  const auto print_outcome = [&](const std::string& value, const RecordedLayout& l) {
    const StepPlan& plan = l.plan;
    print(out,
          "  {:<{}} {:.3f} GiB of memory{}{}; {:.4f} TFLOP in fp8, {:.4f} in bf16; {} bytes sent in {}\n",
          value, width, l.gib(), e.shape.pipeline.is_on() ? fmt::format(" on rank {}", plan.rank) : "",
          l.time ? fmt::format(", {} a step", duration_text(l.time->seconds)) : "",
          plan.flops(Precision::fp8) / 1e12, plan.flops(Precision::bf16) / 1e12,
          with_commas(plan.traffic.sent_bytes()), counted(plan.traffic.calls(), "call"));
    if (const WeightQuantizing made = weight_quantizing(plan); made.calls > 0)
      print(out, "  {:<{}} {} of gathered weights, {:.3f} GiB read and written\n", "", width,
            counted(made.calls, "quantization"), gib(made.bytes));
  };
  for (const auto& [name, by, outcomes] : open_decisions(e)) {
    const Decisions::Entry* decided = e.decisions.find(name);
    if (decided)
      print(out, "Decided as by a run: {} = {} ({})\n", name, decided->value, decided->reason);
    else
      print(out, "Left to the run: {}, decided by {}; this plan is the first of\n", name, by);
    width = 20;
    for (const OpenDecision::Outcome& one : outcomes) width = std::max(width, one.value.size());
    const std::string& value = decided ? decided->value : outcomes[0].value;
    const bool is_listed = find_by(outcomes, value, &OpenDecision::Outcome::value) != nullptr;
    print_outcome(is_listed ? value : "as decided", planned);  // else ranks of a pipeline differ
    for (const OpenDecision::Outcome& other : outcomes) {
      if (other.value != value)
        print_outcome(other.value, recorded_layout(planned.layout, sample_roles(other.shape, device, e.mesh),
                                                   machine, snapshots_beside(e, device)));
    }
  }
}

// Under auto a measurement chooses attention's kernels, which change no traffic.
bool is_attention_open(const Experiment& e, Device device) {
  return device.is_gpu() && e.config.attention.backend == AttentionConfig::Backend::automatic &&
         objection_to_cudnn(e).empty();
}

// Of the same step with the other kind of attention; nothing where the table has no cuDNN.
std::optional<StepTime> time_with_other_attention(std::span<const StepPlan> roles, const Machine* machine) {
  if (!machine || machine->device.cudnn_forward == 0) return std::nullopt;
  Machine other = *machine;
  other.has_cudnn_attention = !machine->has_cudnn_attention;
  return predict_step(roles, other);
}

// `otherwise`: what time_with_other_attention() gives.
void print_attention_choice(const Experiment& e, const RecordedLayout& planned, const Machine* machine,
                            const std::optional<StepTime>& otherwise, std::ostream& out) {
  const bool is_first_cudnn = machine && machine->has_cudnn_attention;
  const int64_t gradients = bytes_of_cudnn_gradients(e);
  const std::string more =
      gradients > 0 ? fmt::format(", {:.3f} more for its gradients,", gib(gradients)) : "";
  print(out,
        "Left to the run: attention.backend, decided by the time of a layer's attention on the GPU, if "
        "cuDNN's workspace fits; this plan is the first of\n");
  for (const bool is_cudnn : {is_first_cudnn, !is_first_cudnn}) {
    const auto& time = is_cudnn == is_first_cudnn ? planned.time : otherwise;
    print(out, "  {:<20} {:.3f} GiB of memory{}{}\n", is_cudnn ? "cudnn" : "flash", planned.gib(),
          is_cudnn ? more + " and cuDNN's workspace, whose size is known where it runs" : "",
          otherwise ? fmt::format("; {} a step", duration_text(time->seconds)) : "");
  }
}

// Why weights that FP8 products read travel in the compute type, and what cutting at whole blocks costs.
void print_float8(const Experiment& e, const StepPlan& plan, std::ostream& out) {
  const TrainingShape& s = e.shape;
  const std::optional<int>& capability = e.compute_capability;
  if (s.float8_policy.decisions.empty()) return;
  out << "Precision of linear layers";
  if (capability) print(out, " (compute capability {}.{})", *capability / 10, *capability % 10);
  out << ":\n" << fp8::policy_table(s.float8_policy);
  for (const std::string& remark : float8_remarks(e, plan)) out << remark << "\n";
  const int shards = e.mesh.shards();
  std::vector<ParameterSpec> specs = llama_parameters(s.model).specs;
  align_shards(specs, s.parameters);
  const ParameterSpec* worst = nullptr;
  double most = 1;
  for (const ParameterSpec& spec : specs) {
    const int64_t rows = tensor_parallel_shape(spec, e.mesh.size(MeshAxis::tp))[0];
    const double ratio =
        static_cast<double>(largest_shard_rows(rows, shards, spec.shard_alignment) * shards) / rows;
    if (spec.shard_alignment > 1 && ratio > most) most = ratio, worst = &spec;
  }
  if (worst)
    print(out, "  shards are whole blocks of 128 rows: the largest of {} holds {:.2f} times its even part\n",
          worst->name, most);
}

void print_model(const Experiment& e, std::ostream& out) {
  out << notes_text(e.config);
  print(out, "Model {}: {} parameters, vocabulary {}\n", model_title(e.config.model),
        with_commas(parameter_count(e.shape.model)), e.shape.model.vocab_size);
}

void print_step(const Experiment& e, const RecordedLayout& recorded, const Machine* machine,
                std::ostream& out) {
  const int shown = first_rank_of_role(e.mesh, recorded.role), fullest = recorded.plan.rank;
  print(out, "Ranks: {} ({}), planned for {}; this is rank {}{}, the fullest\n", e.mesh.world_size(),
        e.mesh.describe(), machine ? machine->device.name : "a GPU", shown,
        fullest == shown ? "" : fmt::format(" with the memory of rank {}", fullest));
  print(out, "Step: {} of {}, {} of {} per rank; model FLOPs per token {:.4e}\n",
        counted(e.global_batch, "sequence"), counted(e.shape.sequence, "token"),
        counted(e.shape.micro_batches, "micro-batch", "micro-batches"), e.shape.batch,
        model_flops_per_token(e.shape.model, e.shape.sequence));
}

void write_trace(const std::string& path, const PlannedExperiment& planned, const Machine& machine,
                 std::ostream& out) {
  const Experiment& e = planned.experiment;
  const std::string text = predicted_trace(sample_first_of_roles(e.shape, planned.device, e.mesh), machine,
                                           fmt::format("planned, {}", machine.device.name));
  write_output_file(path, path.ends_with(".gz") ? gzip(text, path) : text);
  print(out, "Predicted step: {} (open it at https://ui.perfetto.dev, beside a run's)\n", path);
}

void plan_step(const PlanCommand& command, const Config& config, const PlannedExperiment& open,
               const Machine* machine, std::ostream& out) {
  const std::optional<MemoryLimit> limit = memory_limit(command.machine, machine);
  const std::optional<double> limit_gib = limit ? std::optional(limit->gib) : std::nullopt;
  const LayoutRecorder recorder(config, open, machine, limit_gib);
  const Device device = open.device;
  auto [e, roles] = decided_step(open.experiment, device, limit_gib, machine);
  const bool is_open = is_attention_open(e, device);
  const std::optional<StepTime> otherwise =
      is_open ? time_with_other_attention(roles, machine) : std::nullopt;
  RecordedLayout recorded =
      recorded_layout(layout_of(e), std::move(roles), machine, snapshots_beside(e, device));
  recorded.decisions = e.decisions.entries;
  const StepPlan& plan = recorded.plan;
  print_model(e, out);
  print_step(e, recorded, machine, out);
  print_pipeline(e.shape.pipeline, recorded, out);
  print_context_parallel(e, out);
  if (const std::string optimizer = optimizer_text(e); !optimizer.empty())
    out << "Optimizer: " << optimizer << "\n";
  print_float8(e, plan, out);
  print_memory(plan.memory, out);
  if (device.is_gpu() && config.attention.backend == AttentionConfig::Backend::cudnn)
    out << "  without the workspace of cuDNN's attention, whose size is known where it runs\n";
  print_nccl(recorded, out);
  if (saves_asynchronously(config.checkpoint)) {
    print(out, "Host memory per rank: {:.3f} GiB of a snapshot for asynchronous checkpoints\n",
          gib(snapshot_bytes(e, coordinates_of_role(e, recorded.role))));
  }
  if (limit) print_verdict(recorded, *limit, recorder, out);
  if (limit && !machine && e.mesh.world_size() > 1 && !config.comm.excludes_nccl())
    out << "  without what NCCL takes besides, which is not known for this GPU\n";
  print_compute(plan, out);
  print_traffic(plan.traffic, out);
  if (machine)
    print_time(recorded, *machine, e, out);
  else
    print(
        out,
        "Time{}: unknown, because no table has this GPU; set --device to a table or to a file of your own\n",
        limit ? "" : ", and whether it fits");
  print_float8_gather(recorded, config, recorder, out);
  print_decisions(e, device, recorded, machine, out);
  if (is_open) print_attention_choice(e, recorded, machine, otherwise, out);
  if (!command.trace.empty()) write_trace(command.trace, {device, e}, *machine, out);
  write_json_file(command.json, plan_json({std::move(recorded)}, {}, limit, machine, command.machine, e));
}

void plan_search(const PlanCommand& command, const Config& config, const PlannedExperiment& planned,
                 const Machine& machine, std::ostream& out) {
  const MemoryLimit limit = *memory_limit(command.machine, &machine);
  const Experiment& e = planned.experiment;
  print_model(e, out);
  print(out, "Step: {} of {}\n", counted(e.global_batch, "sequence"), counted(e.shape.sequence, "token"));
  const SearchResult result =
      search_layouts(config, planned, machine,
                     {.limit_gib = limit.gib,
                      .top = static_cast<size_t>(command.top > 0 ? command.top : kLayoutsShown),
                      .fixed = command.fixed});
  print_search(result, limit, machine, e, out);
  std::vector<RecordedLayout> layouts = result.best;
  if (result.closest) layouts.push_back(*result.closest);
  write_json_file(command.json, plan_json(layouts, result.reasons, limit, &machine, command.machine, e));
}

// What runs have measured on this machine's GPU, if the plan is for that.
std::vector<std::string> own_calibration(const DeviceTable& device, const Config& config) {
  if (!device.is_gpu() || cuda::device_count() == 0) return {};
  try {
    const std::string file =
        kept_products(device, config.training.gemm_cache, cuda::blas_library(), cuda::device_name(0));
    return file.empty() ? std::vector<std::string>{} : std::vector{file};
  } catch (const DeviceError&) {  // without the library nothing was measured with it
    return {};
  }
}

// Options that would be ignored are refused.
void check_options(const PlanCommand& c) {
  if (const std::optional<double>& limit = c.machine.limit_gib;
      limit && !(std::isfinite(*limit) && *limit > 0))
    fail<ConfigError>("plan", "--limit-gib is {}, expected a number > 0", *limit);
  if (c.work == PlanCommand::Work::search) {
    if (!c.trace.empty())
      fail<ConfigError>("plan",
                        "--trace writes one step and cannot be combined with --search: use it with a layout "
                        "that --search found");
    return;
  }
  if (c.top > 0) fail<ConfigError>("plan", "--top sets how many layouts --search shows: add --search");
  if (!c.fixed.empty())
    fail<ConfigError>("plan", "--fix says what --search keeps: add --search, or set the key with --{} VALUE",
                      c.fixed.front().substr(0, c.fixed.front().find('=')));
}

// What no plan can tell of a GPU that no table has. Before anything is recorded and printed.
void check_times_are_known(const PlanCommand& c, bool has_table) {
  if (has_table) return;
  const std::pair<bool, std::string_view> asked[] = {{c.work == PlanCommand::Work::search, "--search"},
                                                     {!c.trace.empty(), "--trace"},
                                                     {!c.machine.network.empty(), "--network"},
                                                     {c.machine.ranks_per_node > 0, "--gpus-per-node"},
                                                     {!c.machine.calibration.empty(), "--calibration"}};
  for (const auto& [is_given, option] : asked)
    if (is_given)
      fail<ConfigError>(
          "plan",
          "{} needs times, but no table has this GPU: set --device to a table or to a file of your own",
          option);
}

// By what ranks of GPUs would exchange tensors through host memory, if that is asked for.
std::string_view host_transport(const Experiment& e) {
  const CommConfig& comm = e.config.comm;
  if (e.mesh.world_size() == 1 || !comm.excludes_nccl()) return {};
  return comm.backend == CommConfig::Backend::mpi ? "mpi" : "tcp";
}

// What a run would refuse at its start, on whatever machine with such a device. Ranks by name only where it
// is known how many there are.
void check_start(const Experiment& e, Device device, bool are_ranks_given) {
  const Config& c = e.config;
  try {
    require_possible_attention(e, device);
    check_backend(c.comm.backend, device);
    if (!device.is_gpu()) check_sm_budget(c.comm.sm_budget, device);
    decide_graphs(c.training.cuda_graphs, device,
                  {.has_stages = e.shape.pipeline.is_on(), .host_transport = host_transport(e)});
  } catch (const ConfigError& error) {
    if (device.is_gpu()) throw;
    throw ConfigError(fmt::format("{}; to plan for GPUs, name one with --device", error.what()));
  }
  if (are_ranks_given && c.profiling.enable_profiling) c.profiling.named_ranks(e.mesh.world_size());
}

// Refuses what a run would, if there is a tokenizer; the plan itself may need none.
void check_tokenizer_if_there(const Experiment& planned) {
  const Config& c = planned.config;
  Experiment e = planned;
  if (!e.tokenizer && has_assets(c) && is_there((find_assets(c) / "tokenizer.json").string())) {
    e.tokenizer = load_tokenizer(c);
    resolved_model(c, e.tokenizer.get());
  }
  if (e.tokenizer && (reads_chats(c.training) || validates_chats(c.training, c.validation))) check_chats(e);
}

}  // namespace

void run_plan_command(const PlanCommand& asked_for, std::ostream& out) {
  PlanCommand command = asked_for;
  check_options(command);
  std::vector<std::string> read = command.machine.calibration;
  read.insert(read.end(), {command.file, command.machine.device, command.machine.network});
  for (const std::string& file : {command.json, command.trace}) require_named_output(file, read);
  Config config = load_config(command.file, command.overrides);
  const std::optional<DeviceTable> table = choose_device(command.machine, config);
  check_times_are_known(command, table.has_value());
  if (config.training.device == "auto" && table) config.training.device = table->is_gpu() ? "cuda" : "cpu";
  const bool on_cpu = table && !table->is_gpu();
  const auto wanted = static_cast<int>(config.training.threads);
  const ThreadsFor threads(on_cpu && wanted > 0 ? wanted : parallel_threads());
  if (on_cpu)
    follow_cpu_products(MeasuredOperations::read(command.machine.calibration).decisions(), config.cpu);
  const int asked = command.machine.compute_capability;
  const PlannedExperiment planned =
      plan_experiment(config, command.world_size, asked > 0 || !table ? asked : table->capability);
  check_start(planned.experiment, planned.device, command.world_size > 0);
  check_tokenizer_if_there(planned.experiment);
  std::optional<Machine> machine;
  if (table && command.machine.calibration.empty()) {
    command.machine.calibration = own_calibration(*table, config);
    for (const std::string& file : command.machine.calibration)
      print(out, "Products take what runs here measured: {} (training.gemm_cache)\n", file);
  }
  if (table) machine = planned_machine(command.machine, *table, planned);
  if (on_cpu && wanted == 0) {  // what a rank of a run would have; `threads` takes it back
    const int here = std::min(planned.experiment.mesh.world_size(), machine->ranks_per_node);
    set_parallel_threads(cpu_share(here).threads);
  }
  if (command.work == PlanCommand::Work::search) return plan_search(command, config, planned, *machine, out);
  plan_step(command, config, planned, machine ? &*machine : nullptr, out);
}

void add_plan_command(Command& commands) {
  auto o = std::make_shared<PlanCommand>();
  MachineChoice& m = o->machine;
  commands
      .experiment("plan",
                  "predict memory, compute, traffic and time of a training step on any number of devices, "
                  "and whether it fits; needs no GPU",
                  *o)
      .range("--world-size,--gpus", o->world_size, {1, kMostRanks},
             "number of ranks to plan for (default: the smallest number that the parallelism degrees allow)")
      .option("--device", m.device,
              "device to plan for: a name from configs/devices, such as h100_sxm, or a file of your own "
              "(default: this machine's; for training.device cuda without a GPU h100_sxm, or what "
              "--compute-capability names)")
      .option(
          "--network", m.network,
          "network between machines: a name from configs/networks, or a file of your own (default: ib_400)")
      .range("--gpus-per-node", m.ranks_per_node, {1, 1 << 16},
             "ranks on each machine (default: 8; for a CPU its cores)")
      .option("--limit-gib", m.limit_gib, "memory of each rank in GiB, instead of the device table's")
      .flag(
          "--search", o->work, PlanCommand::Work::search,
          "find the fastest parallel layouts that fit, keeping the number of ranks, global batch and model; "
          "with each activation_checkpoint.mode, auto among them; where the configuration has FP8, with and "
          "without it; for more than 65536 ranks this can take minutes")
      .range("--top", o->top, {1, 100}, "number of layouts that --search shows (default: 10)")
      .option("--fix", o->fixed,
              "KEY=VALUE that --search must not change, such as parallelism.tensor_parallel_degree=8; a key "
              "of quantize.linear.float8 leaves out BF16")
      .option("--json", o->json, "write the results to this JSON file")
      .option("--trace", o->trace,
              "write a trace of the predicted step to this file, for Perfetto (.json or .json.gz)")
      .option("--calibration", m.calibration,
              "measurements of the device: a file of `bench kernels --json`, whose way of multiplying BF16 a "
              "plan for a CPU follows, or its file in the folder training.gemm_cache; may be repeated "
              "(default: this machine's GPU's file in that folder, if there is one)")
      .range("--compute-capability", m.compute_capability, {kLeastCapability, kMostCapability},
             "compute capability of the GPUs to plan for, such as 100 for 10.0 (default: the device's, else "
             "that of this machine's GPU, else 90)")
      .run(o, run_plan_command);
}

}  // namespace ottava
