// Operations whose CUDA kernels are not written.
#include "core/error.h"
#include "fp8/amax_history_kernels.h"
#include "fp8/quantize_kernels.h"
#include "fp8/scaled_matmul_kernels.h"

namespace ottava::fp8::cuda {
namespace {
[[noreturn]] void absent() { fail<DeviceError>("cuda", "this operation has no CUDA kernel: use device cpu"); }
}  // namespace

void advance(Stream&, const AmaxHistory&, const Tensor&) { absent(); }
void delayed_amax(Stream&, const AmaxHistory&, const Tensor&, const Tensor&) { absent(); }
void amax(Stream&, const Tensor&, const Tensor&) { absent(); }
void column_amax(Stream&, const Tensor&, const Tensor&) { absent(); }
void scaled_matmul(Stream&, const ScaledMatmul&) { absent(); }
void quantize(Stream&, const Quantize&) { absent(); }
void dequantize(Stream&, const Quantized&, Granularity, const Tensor&) { absent(); }
void transpose_bytes(Stream&, const Tensor&, const Tensor&) { absent(); }

}  // namespace ottava::fp8::cuda
