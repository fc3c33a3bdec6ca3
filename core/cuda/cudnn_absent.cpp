#include "core/cuda/cudnn_graphs.h"
#include "core/error.h"

namespace ottava::cuda {
namespace {

[[noreturn]] void absent() {
  fail<DeviceError>(
      "cudnn",
      "this program was built without cuDNN's attention: build with CUDA, cudnn.h and cudnn_frontend.h (the "
      "latter is in pip's nvidia-cudnn-frontend), or set attention.backend to auto or flash");
}

}  // namespace

struct CudnnGraphs::State {};

bool cudnn_is_built() { return false; }
std::string cudnn_library() { absent(); }
CudnnGraphs::CudnnGraphs(int) { absent(); }
CudnnGraphs::~CudnnGraphs() = default;
size_t CudnnGraphs::add(const AttentionGraph&) { absent(); }
int64_t CudnnGraphs::workspace_bytes(size_t) const { absent(); }
void CudnnGraphs::run(Stream&, size_t, std::span<void* const>, void*) { absent(); }

}  // namespace ottava::cuda
