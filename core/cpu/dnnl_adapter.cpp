#include "core/cpu/dnnl_adapter.h"

#include <array>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "core/round_up.h"
#include "core/threads/threads_for.h"

namespace ottava::cpu {
namespace {
int64_t lines_of(int64_t bytes) { return round_up(bytes, 64); }
}  // namespace

// The problem as oneDNN gets it. Version 3.7 takes a column to be contiguous whatever its leading dimension
// is: a C of one column, or an A of one row stored transposed. Such a column is copied.
struct SolvedProblem {
  explicit SolvedProblem(const GemmProblem& p) : problem(p) {
    constexpr bool kMayBeWrong = DNNL_VERSION_MAJOR >= 3;
    if (kMayBeWrong && p.m == 1 && p.a == GemmProblem::Stored::transposed && p.lda > 1) {
      a_stride = p.lda;
      problem.a = GemmProblem::Stored::plain, problem.lda = p.k;
    }
    if (kMayBeWrong && p.n == 1 && p.ldc > 1) c_stride = p.ldc, problem.ldc = 1;
  }
  bool is_copied() const { return a_stride != 0 || c_stride != 0; }
  int64_t a_bytes() const { return a_stride ? problem.k * size_of(problem.input) : 0; }
  int64_t c_bytes() const { return c_stride ? problem.m * size_of(problem.output) : 0; }
  /// Offset of copies, behind oneDNN's own scratch.
  int64_t scratch_bytes(int64_t own) const {
    return is_copied() ? lines_of(own) + lines_of(a_bytes()) + c_bytes() : own;
  }

  GemmProblem problem;
  int64_t a_stride = 0, c_stride = 0;  ///< of the column as it is; 0: not copied
};

namespace {

using dnnl::memory;

// Holds no data; shared by all threads.
const dnnl::engine& engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory::data_type type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return memory::data_type::f32;
    case DType::bf16:
      return memory::data_type::bf16;
    default:
      fail<ShapeError>("gemm", "dtype is {}, expected f32 or bf16", name_of(dtype));
  }
}

memory::desc matrix(DType dtype, int64_t rows, int64_t cols, GemmProblem::Stored stored, int64_t ld) {
  bool plain = stored == GemmProblem::Stored::plain;
  memory::dims strides = plain ? memory::dims{ld, 1} : memory::dims{1, ld};
  return memory::desc(memory::dims{rows, cols}, type_of(dtype), strides);
}

memory::desc one_number() {
  return memory::desc(memory::dims{1, 1}, memory::data_type::f32, memory::dims{1, 1});
}

/// Elements of `size` bytes.
void copy_column(const void* from, int64_t from_stride, void* to, int64_t to_stride, int64_t count,
                 size_t size) {
  const auto step = static_cast<int64_t>(size);
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(static_cast<char*>(to) + i * to_stride * step,
                static_cast<const char*>(from) + i * from_stride * step, size);
  }
}

dnnl::matmul::primitive_desc describe(const GemmProblem& p) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops after;
  if (p.scale == GemmProblem::Scale::at_run_time)
    after.append_binary(dnnl::algorithm::binary_mul, one_number());
  if (p.result == GemmProblem::Result::accumulate) after.append_sum(1.0f);
  attributes.set_post_ops(after);
  memory::desc a = matrix(p.input, p.m, p.k, p.a, p.lda);
  memory::desc b = matrix(p.input, p.k, p.n, p.b, p.ldb);
  memory::desc c = matrix(p.output, p.m, p.n, GemmProblem::Stored::plain, p.ldc);
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul::primitive_desc(engine(), a, b, c, attributes);
#else
  return dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attributes, engine());
#endif
}

dnnl::matmul::primitive_desc describe_or_fail(const GemmProblem& p, int threads) {
  const ThreadsFor scope(threads);  // oneDNN makes a primitive for its current setting
  try {
    return describe(p);
  } catch (const dnnl::error& error) {
    fail<DeviceError>("gemm",
                      "{} refuses {} x {} -> {} with m {}, n {}, k {}, leading dimensions {}, {}, {}: {}",
                      dnnl_version_text(), name_of(p.input), name_of(p.input), name_of(p.output), p.m, p.n,
                      p.k, p.lda, p.ldb, p.ldc, error.what());
  }
}

int64_t own_scratch(const dnnl::matmul::primitive_desc& description) {
  return static_cast<int64_t>(description.scratchpad_desc().get_size());
}

}  // namespace

// oneDNN's memory objects carry the data pointers, so each lane has its own, and its own stream.
struct Gemm::State {
  struct Lane {
    memory a, b, c, scratch, scale;
    dnnl::stream stream;
    std::array<dnnl_exec_arg_t, 5> args;
  };
  SolvedProblem solved;
  int arguments = 4;  // the scale is the fifth
  dnnl::matmul::primitive_desc description;
  dnnl::matmul primitive;
  std::vector<Lane> lanes;
};

Gemm::Gemm(const GemmProblem& problem, int threads, int lanes)
    : state_(std::make_unique<State>(State{.solved = SolvedProblem(problem)})) {
  state_->description = describe_or_fail(state_->solved.problem, threads);
  {
    ThreadsFor scope(threads);
    state_->primitive = dnnl::matmul(state_->description);
  }
  if (problem.scale == GemmProblem::Scale::at_run_time) state_->arguments = 5;
  const auto& d = state_->description;
  for (int i = 0; i < lanes; ++i) {
    State::Lane lane{memory(d.src_desc(), engine(), DNNL_MEMORY_NONE),
                     memory(d.weights_desc(), engine(), DNNL_MEMORY_NONE),
                     memory(d.dst_desc(), engine(), DNNL_MEMORY_NONE),
                     memory(d.scratchpad_desc(), engine(), DNNL_MEMORY_NONE),
                     memory(one_number(), engine(), DNNL_MEMORY_NONE),
                     dnnl::stream(engine()),
                     {}};
    lane.args = {dnnl_exec_arg_t{DNNL_ARG_SRC, lane.a.get()},
                 {DNNL_ARG_WEIGHTS, lane.b.get()},
                 {DNNL_ARG_DST, lane.c.get()},
                 {DNNL_ARG_SCRATCHPAD, lane.scratch.get()},
                 {DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, lane.scale.get()}};
    state_->lanes.push_back(std::move(lane));
  }
}
Gemm::Gemm(Gemm&&) noexcept = default;
Gemm::~Gemm() = default;

int64_t Gemm::scratch_bytes() const { return state_->solved.scratch_bytes(own_scratch(state_->description)); }

void Gemm::run(int lane, const void* a, const void* b, void* c, void* scratch, const float* scale) const {
  State::Lane& memory = state_->lanes[static_cast<size_t>(lane)];
  const SolvedProblem& solved = state_->solved;
  const GemmProblem& p = solved.problem;
  char* const spare =
      solved.is_copied() ? static_cast<char*>(scratch) + lines_of(own_scratch(state_->description)) : nullptr;
  void* const column = c;
  if (solved.a_stride) {
    copy_column(a, solved.a_stride, spare, 1, p.k, size_of(p.input));
    a = spare;
  }
  if (solved.c_stride) {
    c = spare + lines_of(solved.a_bytes());
    if (p.result == GemmProblem::Result::accumulate)
      copy_column(column, solved.c_stride, c, 1, p.m, size_of(p.output));
  }
  memory.a.set_data_handle(const_cast<void*>(a));
  memory.b.set_data_handle(const_cast<void*>(b));
  memory.c.set_data_handle(c);
  memory.scratch.set_data_handle(scratch);
  if (scale) memory.scale.set_data_handle(const_cast<float*>(scale));
  // The C call: the C++ one builds a hash map of the arguments each time.
  dnnl_status_t status = dnnl_primitive_execute(state_->primitive.get(), memory.stream.get(),
                                                state_->arguments, memory.args.data());
  if (status != dnnl_success)
    fail<DeviceError>("gemm", "{} failed with status {}", dnnl_version_text(), int{status});
  if (solved.c_stride) copy_column(c, 1, column, solved.c_stride, p.m, size_of(p.output));
}

int64_t gemm_scratch_bytes(const GemmProblem& problem, int threads) {
  const SolvedProblem solved(problem);
  return solved.scratch_bytes(own_scratch(describe_or_fail(solved.problem, threads)));
}

bool gemm_takes_scale(const GemmProblem& problem) {
  GemmProblem plain = problem, scaled = problem;
  plain.scale = GemmProblem::Scale::none;
  scaled.scale = GemmProblem::Scale::at_run_time;
  const auto name = [](const GemmProblem& p) { return std::string(describe_or_fail(p, 1).impl_info_str()); };
  return name(plain) == name(scaled);
}

namespace {
// The values are sets of bits, each set holding those it extends.
bool may_use(dnnl::cpu_isa isa) {
  const auto bits = static_cast<unsigned>(isa);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}
}  // namespace

bool dnnl_multiplies_bf16() { return may_use(dnnl::cpu_isa::avx512_core_bf16); }
bool dnnl_uses_amx() { return may_use(dnnl::cpu_isa::avx512_core_amx); }

std::string dnnl_version_text() {
  const dnnl_version_t* v = dnnl_version();
  return fmt::format("oneDNN {}.{}.{}", v->major, v->minor, v->patch);
}

}  // namespace ottava::cpu
