#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <vector>

#include "core/bf16.h"
#include "core/cuda/cudnn_graphs.h"
#include "core/error.h"
#include "tests/support/cuda_host/execution.h"

// cuDNN's attention for the host execution layer: takes or refuses what a graph describes, by the library's
// rules, and computes from the description alone (addresses, strides, attributes), in stream order. Compiled
// with the sanitizers' instrumentation. OTTAVA_CUDA_HOST_CUDNN says what kind of library it is:
//     fast      claims to take no time, less than any kernel
//     slow      claims to take long
//     none      is not installed
//     old       its backward is not deterministic, and reads lse as packed
//     hungry    its deterministic backward wants 2 GiB
//     ravenous  the same with 1 TiB
//     uneven    its other backward is faster
namespace ottava::cuda {
namespace {

using Role = AttentionGraph::Role;
using Operand = AttentionGraph::Operand;

std::string_view setting() {
  const char* value = std::getenv("OTTAVA_CUDA_HOST_CUDNN");
  return value ? value : "fast";
}

/// Why the library would refuse, or null.
const char* objection(const AttentionGraph& g) {
  const int64_t d = g.problem.heads.head_dim;
  if (d % 8 != 0 || d > 128) return "head dimensions are multiples of 8 up to 128";
  if (!g.causal) return "this graph is causal";
  if (g.at(Role::k).dims[2] < g.at(Role::q).dims[2])
    return "the bottom right causal mask does not support more queries than keys";
  if (g.problem.pass == Pass::backward && g.deterministic && setting() == "old")
    return "backward is not deterministic";
  if (g.problem.pass == Pass::backward && !g.has_packed_lse() && setting() == "old")
    return "lse of backward is not packed";
  for (const Operand& o : g.operands) {
    if (o.strides[3] != 1) return "the last stride is not 1";
    if (o.dtype != (o.role == Role::lse ? DType::f32 : DType::bf16))
      return "a type that this graph does not have";
    if (o.role != Role::lse && o.offset * 2 % 16 != 0) return "an operand is not aligned to 16 bytes";
  }
  return nullptr;
}

/// An operand whose elements are read and written by [b, h, t, d].
class View {
 public:
  View(const AttentionGraph& graph, Role role, std::span<void* const> addresses) {
    for (size_t i = 0; i < graph.operands.size(); ++i) {
      if (graph.operands[i].role != role) continue;
      operand_ = &graph.operands[i];
      data_ = addresses[i];
    }
  }
  double get(int64_t b, int64_t h, int64_t t, int64_t d = 0) const {
    const int64_t i = index(b, h, t, d);
    return operand_->dtype == DType::f32
               ? static_cast<const float*>(data_)[i]
               : static_cast<float>(bf16::from_bits(static_cast<const uint16_t*>(data_)[i]));
  }
  void set(int64_t b, int64_t h, int64_t t, int64_t d, double value) const {
    const int64_t i = index(b, h, t, d);
    if (operand_->dtype == DType::f32) {
      static_cast<float*>(data_)[i] = static_cast<float>(value);
    } else {
      static_cast<uint16_t*>(data_)[i] = bf16(static_cast<float>(value)).bits;
    }
  }
  int64_t last() const {
    int64_t sum = 0;
    for (size_t i = 0; i < 4; ++i) sum += (operand_->dims[i] - 1) * operand_->strides[i];
    return sum;
  }
  bool is_inside() const {
    return cuda_host::device_bytes_behind(data_) >=
           static_cast<size_t>(last() + 1) * size_of(operand_->dtype);
  }

 private:
  int64_t index(int64_t b, int64_t h, int64_t t, int64_t d) const {
    const auto& s = operand_->strides;
    return b * s[0] + h * s[1] + t * s[2] + d * s[3];
  }
  const Operand* operand_ = nullptr;
  void* data_ = nullptr;
};

struct Work {
  AttentionGraph graph;
  std::vector<void*> addresses;
  float* workspace;
  int64_t workspace_floats;

  View view(Role role) const { return {graph, role, addresses}; }
  double score(const View& q, const View& k, int64_t b, int64_t h, int64_t i, int64_t j) const {
    double sum = 0;
    for (int64_t d = 0; d < width(); ++d) sum += q.get(b, h, i, d) * k.get(b, key_head(h), j, d);
    return sum * graph.scale;
  }
  int64_t batch() const { return graph.at(Role::q).dims[0]; }
  int64_t heads() const { return graph.at(Role::q).dims[1]; }
  int64_t queries() const { return graph.at(Role::q).dims[2]; }
  int64_t kv_heads() const { return graph.at(Role::k).dims[1]; }
  int64_t keys() const { return graph.at(Role::k).dims[2]; }
  int64_t width() const { return graph.at(Role::q).dims[3]; }
  int64_t key_head(int64_t h) const { return h / (heads() / kv_heads()); }
  /// The last key that query i sees.
  int64_t last_key(int64_t i) const { return i + keys() - queries(); }

  void forward() const {
    const View q = view(Role::q), k = view(Role::k), v = view(Role::v), out = view(Role::out),
               lse = view(Role::lse);
    for (int64_t b = 0; b < batch(); ++b) {
      for (int64_t h = 0; h < heads(); ++h) {
        for (int64_t i = 0; i < queries(); ++i) {
          std::vector<double> scores(static_cast<size_t>(last_key(i) + 1));
          double largest = -std::numeric_limits<double>::infinity(), sum = 0;
          for (int64_t j = 0; j <= last_key(i); ++j)
            largest = std::max(largest, scores[static_cast<size_t>(j)] = score(q, k, b, h, i, j));
          for (double& s : scores) sum += s = std::exp(s - largest);
          lse.set(b, h, i, 0, largest + std::log(sum));
          for (int64_t d = 0; d < width(); ++d) {
            double x = 0;
            for (int64_t j = 0; j <= last_key(i); ++j)
              x += scores[static_cast<size_t>(j)] * v.get(b, key_head(h), j, d);
            out.set(b, h, i, d, x / sum);
          }
        }
      }
    }
  }

  void backward() const {
    const int64_t width = this->width();
    const View q = view(Role::q), k = view(Role::k), v = view(Role::v), out = view(Role::out),
               lse = view(Role::lse), dout = view(Role::dout), dq = view(Role::dq), dk = view(Role::dk),
               dv = view(Role::dv);
    const auto block = [&] { return std::vector<double>(static_cast<size_t>(keys() * width)); };
    for (int64_t b = 0; b < batch(); ++b) {
      for (int64_t kv = 0; kv < kv_heads(); ++kv) {
        std::vector<double> dkeys = block(), dvalues = block();
        for (int64_t h = 0; h < heads(); ++h) {
          if (key_head(h) != kv) continue;
          for (int64_t i = 0; i < queries(); ++i) {
            std::vector<double> dquery(static_cast<size_t>(width));
            double delta = 0;
            for (int64_t d = 0; d < width; ++d) delta += out.get(b, h, i, d) * dout.get(b, h, i, d);
            for (int64_t j = 0; j <= last_key(i); ++j) {
              const double probability = std::exp(score(q, k, b, h, i, j) - lse.get(b, h, i));
              double gradient = 0;
              for (int64_t d = 0; d < width; ++d) gradient += dout.get(b, h, i, d) * v.get(b, kv, j, d);
              const double ds = probability * (gradient - delta) * graph.scale;
              for (int64_t d = 0; d < width; ++d) {
                const auto at = static_cast<size_t>(j * width + d);
                dquery[static_cast<size_t>(d)] += ds * k.get(b, kv, j, d);
                dkeys[at] += ds * q.get(b, h, i, d);
                dvalues[at] += probability * dout.get(b, h, i, d);
              }
            }
            for (int64_t d = 0; d < width; ++d) dq.set(b, h, i, d, dquery[static_cast<size_t>(d)]);
          }
        }
        for (int64_t j = 0; j < keys(); ++j) {
          for (int64_t d = 0; d < width; ++d) {
            dk.set(b, kv, j, d, dkeys[static_cast<size_t>(j * width + d)]);
            dv.set(b, kv, j, d, dvalues[static_cast<size_t>(j * width + d)]);
          }
        }
      }
    }
  }

  void run() const {
    const bool is_slow = setting() == "slow" || (setting() == "uneven" && graph.deterministic);
    cuda_host::spend(is_slow ? 5 : 0);
    for (int64_t i = 0; i < workspace_floats; ++i)
      workspace[i] = std::numeric_limits<float>::quiet_NaN();  // what lies there is lost
    graph.problem.pass == Pass::forward ? forward() : backward();
  }
};

}  // namespace

struct CudnnGraphs::State {
  std::vector<AttentionGraph> graphs;
};

bool cudnn_is_built() { return true; }
std::string cudnn_library() { return "cuDNN 9.99.0"; }

CudnnGraphs::CudnnGraphs(int) : state_(std::make_unique<State>()) {
  if (setting() == "none")
    fail<DeviceError>("cuda", "the NVIDIA cuDNN library (libcudnn.so.9) was not found");
}
CudnnGraphs::~CudnnGraphs() = default;

size_t CudnnGraphs::add(const AttentionGraph& graph) {
  if (const char* reason = objection(graph))
    fail<DeviceError>("cudnn", "finding a kernel of attention failed in cuDNN 9.99.0: {}", reason);
  state_->graphs.push_back(graph);
  return state_->graphs.size() - 1;
}

// As if dQ were summed in f32.
int64_t CudnnGraphs::workspace_bytes(size_t index) const {
  const AttentionGraph& graph = state_->graphs[index];
  const bool is_backward = graph.problem.pass == Pass::backward,
             is_costly = is_backward && graph.deterministic;
  if (is_costly && setting() == "hungry") return int64_t{2} << 30;
  if (is_costly && setting() == "ravenous") return int64_t{1} << 40;
  const auto& q = graph.at(Role::q).dims;
  return is_backward ? q[0] * q[1] * q[2] * q[3] * 4 : 0;
}

void CudnnGraphs::run(Stream& stream, size_t index, std::span<void* const> addresses, void* workspace) {
  const AttentionGraph& graph = state_->graphs[index];
  const int64_t bytes = workspace_bytes(index);
  auto* work =
      new Work{graph, {addresses.begin(), addresses.end()}, static_cast<float*>(workspace), bytes / 4};
  const auto refuse = [&](const char* reason) {
    delete work;
    fail<DeviceError>("cudnn", "execution of attention failed in cuDNN 9.99.0: {}", reason);
  };
  for (const Operand& o : graph.operands) {
    if (!work->view(o.role).is_inside()) refuse("an operand does not lie inside device memory");
  }
  if (bytes > 0 && cuda_host::device_bytes_behind(workspace) < static_cast<size_t>(bytes))
    refuse("the workspace does not lie inside device memory");
  const cuda_host::Call call{nullptr, [](void* p) { static_cast<Work*>(p)->run(); },
                             [](void* p) { delete static_cast<Work*>(p); }, work};
  if (cuda_host::enqueue_work(stream.native(), call) != 0)
    fail<DeviceError>("cudnn", "execution of attention failed in cuDNN 9.99.0: the stream takes no work");
}

}  // namespace ottava::cuda
