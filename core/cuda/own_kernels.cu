#include "core/cuda/own_kernels.h"

#include "core/cuda/gpu.h"
#include "core/cuda/runtime.h"
#include "core/text/listed.h"

namespace ottava::cuda {
namespace {

constexpr int kOldest = 80;                           // bf16 in mma and cp.async
constexpr int kCompiledFor[] = {__CUDA_ARCH_LIST__};  // capabilities times 100

__global__ void any_kernel() {}

std::string version(int capability) { return fmt::format("{}.{}", capability / 10, capability % 10); }

bool says_that_there_is_none(cudaError_t status) {
  switch (status) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidKernelImage:
    case cudaErrorInvalidPtx:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
      return true;
    default:
      return false;
  }
}

}  // namespace

void require_own_kernels(int device) {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(any_kernel));
  if (!says_that_there_is_none(status)) return check(status, "cudaFuncGetAttributes");
  cudaGetLastError();
  const int capability = compute_capability(device);
  const std::string advice =
      capability < kOldest ? fmt::format("they need {} or later", version(kOldest))
                           : fmt::format("build the program with -DCMAKE_CUDA_ARCHITECTURES={}", capability);
  fail<DeviceError>("cuda",
                    "GPU {} ({}) has compute capability {}, and this program's kernels, compiled for {}, do "
                    "not run there ({}): {}, or set training.device to cpu",
                    device, device_name(device), version(capability),
                    listed(kCompiledFor, [](int architecture) { return version(architecture / 10); }),
                    cudaGetErrorString(status), advice);
}

}  // namespace ottava::cuda
