// A build without CUDA: a cuda Stream cannot be made there, so these are never reached.
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/optim/adamw_kernels.h"
#include "core/optim/grad_norm_kernels.h"
#include "core/optim/muon_kernels.h"
#include "core/optim/spike_rule.h"

namespace ottava::cuda {
namespace {
[[noreturn]] void absent() { fail<DeviceError>("cuda", "{}", unavailable_reason()); }
}  // namespace

void adamw(Stream&, const std::vector<AdamwTensor>&, const AdamwHyper&, const Tensor&, const Tensor&) {
  absent();
}
void clip_factor(Stream&, const Tensor&, float, const Tensor&, const Tensor&) { absent(); }
void grad_norm_squared(Stream&, const std::vector<Tensor>&, const Tensor&, const Tensor&) { absent(); }
void muon_apply(Stream&, const std::vector<MuonWeight>&, const Tensor&) { absent(); }
void muon_combine(Stream&, const Tensor&, float, const Tensor&, float) { absent(); }
void muon_divide_by_norm(Stream&, const Tensor&, const Tensor&, const Tensor&) { absent(); }
void muon_momentum(Stream&, const std::vector<MuonMomentum>&, const MuonHyper&, const Tensor&) { absent(); }
void skip_spike(Stream&, const SkipSpike&, const SpikeRule&) { absent(); }

}  // namespace ottava::cuda
