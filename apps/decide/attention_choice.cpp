#include "apps/decide/attention_choice.h"

#include <algorithm>

#include "apps/decide/workbench.h"
#include "core/cuda/fused_attention.h"
#include "core/cuda/runtime.h"
#include "core/log.h"
#include "parallel/ranks/agree.h"

namespace ottava {
namespace {

constexpr const char* kBackend = "attention.backend";
constexpr const char* kLibrary = "attention.library";
// Hopper's deterministic backward of older versions keeps T x T scores; a plan that grows so is no bargain.
constexpr int64_t kMostWorkspace = int64_t{1} << 30;

/// cuDNN for this experiment, or the reason why not.
struct Candidate {
  std::shared_ptr<cuda::FusedAttention> fused;
  std::string why_not;
  int64_t workspace = 0;
};

/// Of a step, forward and backward. With cuDNN it is planned.
std::vector<RecordedOperation> attention_of(const Experiment& e, Device device,
                                            const std::shared_ptr<cuda::FusedAttention>& fused) {
  TrainingShape shape = e.shape;
  shape.model_options.fused_attention = fused;
  StepPlan plan = record_first_rank(shape, device, e.mesh);
  std::erase_if(plan.operations, [](const RecordedOperation& o) { return !o.op.starts_with("attention"); });
  return std::move(plan.operations);
}

Candidate find_cudnn(const Experiment& e, Device device) {
  const TrainingShape& s = e.shape;
  if (s.parameters.compute != DType::bf16) {
    return {.fused = nullptr,
            .why_not = fmt::format("cuDNN's attention is bf16, and training.mixed_precision_param is {}",
                                   name_of(s.parameters.compute))};
  }
  if (s.block_causal)
    return {.fused = nullptr,
            .why_not = "cuDNN's attention has no documents, and model.attn_mask_type is block_causal"};
  if (!cuda::cudnn_is_built())
    return {.fused = nullptr,
            .why_not = "this program was built without cuDNN's attention (cudnn.h and cudnn_frontend.h)"};
  Candidate out;
  try {
    auto fused = std::make_shared<cuda::FusedAttention>(device.index);
    for (const RecordedOperation& o : attention_of(e, device, fused)) {
      for (const Tensor& t : o.call.tensors) {
        if (t.dtype == DType::u8) out.workspace = std::max(out.workspace, t.bytes());
      }
    }
    out.fused = std::move(fused);
  } catch (const DeviceError& error) {
    out.why_not = error.what();
  }
  return out;
}

/// Best milliseconds of forward and backward of one layer.
double measure(const Experiment& e, Device device, const std::shared_ptr<cuda::FusedAttention>& fused) {
  Stream stream = Stream::cuda(device.index);
  Workbench tensors(device);
  std::vector<std::function<void(Stream&)>> calls;
  for (const RecordedOperation& o : attention_of(e, device, fused))
    calls.push_back(prepare(o, tensors, e.shape.model.vocab_size));
  return best_milliseconds(stream, [&] {
    for (const auto& call : calls) call(stream);
  });
}

Decisions::Entry measured_choice(const Experiment& e, Device device, const Candidate& candidate) {
  const double ours = measure(e, device, nullptr), theirs = measure(e, device, candidate.fused);
  return {kBackend, theirs < ours ? "cudnn" : "flash",
          fmt::format("forward and backward of a layer: flash {:.3f} ms, cudnn {:.3f} ms", ours, theirs)};
}

/// Rank 0's entry for attention.backend: auto.
Decisions::Entry choose(const Experiment& e, Device device, const Candidate& candidate,
                        const Decisions& saved) {
  if (const Decisions::Entry* before = saved.find(kBackend)) return *before;
  if (!candidate.fused) return {kBackend, "flash", candidate.why_not};
  if (candidate.workspace > kMostWorkspace) {
    return {kBackend, "flash",
            fmt::format("cuDNN's deterministic backward wants a workspace of {:.1f} GiB",
                        static_cast<double>(candidate.workspace) / (1 << 30))};
  }
  return measured_choice(e, device, candidate);
}

std::string complaint_about(const std::string& backend, bool is_saved, const Candidate& candidate) {
  if (backend != "cudnn" && backend != "flash")
    return fmt::format(
        "the checkpoint says {} = '{}', which is neither flash nor cudnn: start with --redecide", kBackend,
        backend);
  if (backend == "flash" || candidate.fused) return {};
  if (is_saved) {
    return fmt::format(
        "{} = cudnn was decided when the checkpoint was saved, and here: {}. Start with --redecide, after "
        "which sums "
        "are made in another order",
        kBackend, candidate.why_not);
  }
  return fmt::format("backend is cudnn, but {}: set it to auto or flash", candidate.why_not);
}

/// Bits are one version's on one GPU model.
std::string complaint_about_library(const Decisions& saved, const std::string& library) {
  const Decisions::Entry* before = saved.find(kLibrary);
  if (!before || before->value == library) return {};
  return fmt::format(
      "attention was computed with {}, and here is {}: start with --redecide, after which sums are made in "
      "another "
      "order",
      before->value, library);
}

}  // namespace

void settle_attention(Experiment& e, RankGroups& ranks, Device device, const Decisions& saved) {
  const std::string& wish = e.config.attention.backend;
  if (device.type != DeviceType::cuda) {
    if (wish == "cudnn")
      fail<ConfigError>("attention", "backend is cudnn, but the device is {}: set it to auto or flash",
                        to_string(device));
    return;
  }
  if (wish == "flash") return log::info("Attention: flash (attention.backend is flash)");
  const Candidate candidate = find_cudnn(e, device);
  Decisions::Entry entry{kBackend, wish, "attention.backend is cudnn"};
  if (wish == "auto") {
    Decisions mine;
    if (ranks.control->rank() == 0) mine.entries.push_back(choose(e, device, candidate, saved));
    entry = of_first_rank(mine, *ranks.control).entries.front();
    e.decisions.entries.push_back(entry);
  }
  refuse_together(*ranks.control, "attention",
                  complaint_about(entry.value, wish == "auto" && saved.find(kBackend), candidate));
  log::info("Attention: {} ({})", entry.value, entry.reason);
  if (entry.value != "cudnn") return;
  const std::string library = cuda::cudnn_library() + " on " + cuda::device_name(device.index);
  refuse_together(*ranks.control, "attention", complaint_about_library(saved, library));
  e.decisions.entries.push_back({kLibrary, library, "its kernels' sums are this version's on this GPU"});
  e.shape.model_options.fused_attention = candidate.fused;
}

}  // namespace ottava
