#include "core/cuda/cudnn_graphs.h"

#include <cuda_runtime_api.h>
#include <cudnn_frontend.h>

#include <cstdlib>
#include <exception>
#include <unordered_map>
#include <vector>

#include "core/cuda/runtime.h"
#include "core/cuda/shared_library.h"
#include "core/error.h"
#include "core/log.h"

// The frontend calls cuDNN, and the CUDA runtime, through this handle and through dlopen
// (NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING).
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace ottava::cuda {
namespace {

namespace fe = cudnn_frontend;
using Role = AttentionGraph::Role;
using TensorPtr = std::shared_ptr<fe::graph::Tensor_attributes>;
constexpr std::string_view kOp = "cudnn";

// Its own search for libcudart knows only the loader's path, so it is opened from wherever ours is first; so
// does the search of engines that are compiled at run time for libnvrtc. Deterministic backward with a
// workspace linear in the sequence, where cuDNN has it, is asked for only by this limit.
void open_library() {
  static const bool opened = [] {
    const std::string cudart = fmt::format("libcudart.so.{}", CUDART_VERSION / 1000);
    const SharedLibrary runtime(cudart, "the CUDA runtime, which cuDNN needs");
    try {
      const SharedLibrary compiler(fmt::format("libnvrtc.so.{}", CUDART_VERSION / 1000),
                                   "CUDA's run-time compiler", SharedLibrary::Symbols::global);
    } catch (const DeviceError& error) {
      log::warning("cuDNN's attention goes without kernels that are compiled at run time: {}", error.what());
    }
    const SharedLibrary cudnn(fmt::format("libcudnn.so.{}", CUDNN_MAJOR), "the NVIDIA cuDNN library");
    ::setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", cudart.c_str(), 0);
    ::setenv("CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT", "0", 0);
    fe::cudnn_dlhandle = cudnn.handle();
    return true;
  }();
  (void)opened;
}

void check(fe::error_t error, const char* call) {
  if (error.is_bad())
    fail<DeviceError>(kOp, "{} of attention failed in {}: {}", call, cudnn_library(), error.get_message());
}
void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS)
    fail<DeviceError>(kOp, "{} failed in {}: status {}", call, cudnn_library(), static_cast<int>(status));
}

/// The frontend reports some things as exceptions of its own: a symbol that the library lacks, a driver that
/// is missing.
template <class Body>
auto as_device_error(const char* call, Body&& body) {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail<DeviceError>(kOp, "{} failed: {}", call, error.what());
  }
}

std::vector<int64_t> list(const std::array<int64_t, 4>& values) { return {values.begin(), values.end()}; }
int64_t uid_of(Role role) { return static_cast<int64_t>(role) + 1; }
fe::DataType_t type_of(DType dtype) {
  return dtype == DType::f32 ? fe::DataType_t::FLOAT : fe::DataType_t::BFLOAT16;
}

void place(const TensorPtr& tensor, const AttentionGraph::Operand& o) {
  tensor->set_name(name_of(o.role))
      .set_uid(uid_of(o.role))
      .set_dim(list(o.dims))
      .set_stride(list(o.strides))
      .set_data_type(type_of(o.dtype));
  if (o.is_result) tensor->set_output(true);
}

/// With equal lengths the two masks are the same, and more kernels support the plain one.
template <class Attributes>
void set_mask(Attributes& attributes, const AttentionGraph& a) {
  if (a.at(Role::k).dims[2] == a.at(Role::q).dims[2]) {
    attributes.set_causal_mask(a.causal);
  } else {
    attributes.set_causal_mask_bottom_right(a.causal);
  }
}

std::shared_ptr<fe::graph::Graph> translate(const AttentionGraph& a) {
  auto graph = std::make_shared<fe::graph::Graph>();
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  auto input = [&](Role role) {
    auto tensor = graph->tensor(fe::graph::Tensor_attributes());
    place(tensor, a.at(role));
    return tensor;
  };
  const TensorPtr q = input(Role::q), k = input(Role::k), v = input(Role::v);
  if (a.problem.pass == Pass::forward) {
    auto attributes = fe::graph::SDPA_attributes()
                          .set_name("attention_forward")
                          .set_attn_scale(a.scale)
                          .set_generate_stats(true);
    set_mask(attributes, a);
    auto [out, lse] = graph->sdpa(q, k, v, attributes);
    place(out, a.at(Role::out));
    place(lse, a.at(Role::lse));
    return graph;
  }
  const TensorPtr out = input(Role::out), dout = input(Role::dout), lse = input(Role::lse);
  auto attributes = fe::graph::SDPA_backward_attributes()
                        .set_name("attention_backward")
                        .set_attn_scale(a.scale)
                        .set_deterministic_algorithm(a.deterministic);
  set_mask(attributes, a);
  auto [dq, dk, dv] = graph->sdpa_backward(q, k, v, out, dout, lse, attributes);
  place(dq, a.at(Role::dq));
  place(dk, a.at(Role::dk));
  place(dv, a.at(Role::dv));
  return graph;
}

// Before 9.26 kernels of backward read lse as packed, whatever its strides say; cudnn-frontend refuses that
// in its later releases only.
void require_lse_is_read(const AttentionGraph& a) {
  constexpr size_t kReadsStrides = 92600;
  if (a.problem.pass == Pass::forward || a.has_packed_lse() ||
      fe::detail::get_backend_version() >= kReadsStrides)
    return;
  fail<DeviceError>(
      kOp,
      "{} reads lse of backward as packed, and this one has a row of all {} heads for each of {} "
      "sequences: use cuDNN 9.26 or later, training.local_batch_size 1, or attention.backend flash",
      cudnn_library(), a.problem.heads.heads, a.problem.batch);
}

}  // namespace

struct CudnnGraphs::State {
  struct Planned {
    std::shared_ptr<fe::graph::Graph> graph;
    std::vector<int64_t> uids;  ///< in the order of the operands
    int64_t workspace_bytes = 0;
  };
  int device = 0;
  cudnnHandle_t handle = nullptr;
  std::vector<Planned> planned;
};

bool cudnn_is_built() { return true; }

std::string cudnn_library() {
  open_library();
  const size_t v = as_device_error("cudnnGetVersion", [] { return fe::detail::get_backend_version(); });
  return fmt::format("cuDNN {}.{}.{}", v / 10000, v % 10000 / 100, v % 100);
}

CudnnGraphs::CudnnGraphs(int device) : state_(std::make_unique<State>()) {
  open_library();
  state_->device = device;
  memory_info(device);  // the GPU's context is this thread's
  check(as_device_error("cudnnCreate", [&] { return fe::detail::create_handle(&state_->handle); }),
        "cudnnCreate");
}

CudnnGraphs::~CudnnGraphs() {
  if (state_ && state_->handle) fe::detail::destroy_handle(state_->handle);
}

size_t CudnnGraphs::add(const AttentionGraph& description) {
  require_lse_is_read(description);
  State::Planned planned{.graph = translate(description)};
  fe::graph::Graph& graph = *planned.graph;
  as_device_error("planning attention", [&] {
    check(graph.validate(), "validation");
    check(graph.build_operation_graph(state_->handle), "building the graph");
    check(graph.create_execution_plans({fe::HeurMode_t::A}), "finding a kernel");
    check(graph.check_support(state_->handle), "finding a kernel");
    check(graph.build_plans(state_->handle), "building the plan");
    check(graph.get_workspace_size(planned.workspace_bytes), "asking for the workspace");
  });
  for (const AttentionGraph::Operand& o : description.operands) planned.uids.push_back(uid_of(o.role));
  state_->planned.push_back(std::move(planned));
  return state_->planned.size() - 1;
}

int64_t CudnnGraphs::workspace_bytes(size_t graph) const { return state_->planned[graph].workspace_bytes; }

void CudnnGraphs::run(Stream& stream, size_t index, std::span<void* const> addresses, void* workspace) {
  State::Planned& planned = state_->planned[index];
  check(fe::detail::set_stream(state_->handle, static_cast<cudaStream_t>(stream.native())), "cudnnSetStream");
  std::unordered_map<int64_t, void*> by_uid;
  for (size_t i = 0; i < addresses.size(); ++i) by_uid[planned.uids[i]] = addresses[i];
  as_device_error("attention",
                  [&] { check(planned.graph->execute(state_->handle, by_uid, workspace), "execution"); });
}

}  // namespace ottava::cuda
