#include "core/cuda/gpu.h"
#include "core/optim/spike_rule.h"

// One thread: a window is a kilobyte.
namespace ottava::cuda {
namespace {

__global__ void spike_kernel(SpikeMemory memory, int64_t window, double sigma) {
  apply_spike_rule(memory, window, sigma);
}

}  // namespace

void skip_spike(Stream& stream, const SkipSpike& args, const SpikeRule& rule) {
  launch("skip_spike", stream, {.grid = 1, .block = 1}, spike_kernel, memory_of(args), rule.window,
         rule.sigma);
}

}  // namespace ottava::cuda
