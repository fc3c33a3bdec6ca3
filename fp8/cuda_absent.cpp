// A build without CUDA: a cuda Stream cannot be made there, so these are never reached.
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "fp8/amax_history_kernels.h"
#include "fp8/quantize_kernels.h"
#include "fp8/scale_tiles_kernels.h"
#include "fp8/scaled_matmul_kernels.h"
#include "fp8/step_amax_kernels.h"

namespace ottava::fp8::cuda {
namespace {
[[noreturn]] void absent() { fail<DeviceError>("cuda", "{}", ottava::cuda::unavailable_reason()); }
}  // namespace

void advance(Stream&, const AmaxHistory&, const Tensor&) { absent(); }
void amax(Stream&, const MatrixRows&, const Tensor&) { absent(); }
void column_amax(Stream&, const MatrixRows&, const Tensor&) { absent(); }
void delayed_amax(Stream&, const AmaxHistory&, const DelayedAmax&) { absent(); }
void dequantize(Stream&, const Float8Codes&, Granularity, const Tensor&) { absent(); }
void fill_with(Stream&, const Tensor&, const Tensor&) { absent(); }
void flag_non_finite(Stream&, const FlagNonFinite&) { absent(); }
void fold_amax(Stream&, const FoldAmax&) { absent(); }
void poison_if_raised(Stream&, const Tensor&, const Tensor&) { absent(); }
void quantize(Stream&, const Quantize&) { absent(); }
void scale_result(Stream&, const ScaledProduct&, const MatrixRows&) { absent(); }
void scaled_matmul(Stream&, const ScaledProduct&) { absent(); }
void tile_scales(Stream&, const MxScales&) { absent(); }
void transpose_block_scales(Stream&, const Tensor&, Shape, const Tensor&) { absent(); }
void transpose_codes(Stream&, const Tensor&, const Tensor&) { absent(); }
void untile_scales(Stream&, const MxScales&) { absent(); }

}  // namespace ottava::fp8::cuda
