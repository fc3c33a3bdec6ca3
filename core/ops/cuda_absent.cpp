// A build without CUDA: a cuda Stream cannot be made there, so these are never reached.
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/ops/rms_norm_kernels.h"

namespace ottava::cuda {
namespace {
[[noreturn]] void absent() { fail<DeviceError>("cuda", "{}", unavailable_reason()); }
}  // namespace

void rms_norm_forward(Stream&, const RmsNormForward&) { absent(); }
void rms_norm_backward(Stream&, const RmsNormBackward&) { absent(); }

}  // namespace ottava::cuda
