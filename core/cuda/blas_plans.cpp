#include "core/cuda/blas_plans.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <set>

#include "core/cuda/cublaslt_library.h"
#include "core/cuda/runtime.h"
#include "core/log.h"

namespace ottava::cuda {
namespace {

constexpr std::string_view kOp = "matmul";
/// The library does not have this product.
class NoAlgorithm : public DeviceError {
 public:
  using DeviceError::DeviceError;
};
constexpr int kCandidates = 8, kMeasurements = 3;
// A run shorter than this would measure the host's time to enqueue it, so several are timed together.
constexpr double kShortMilliseconds = 0.05;
constexpr int kShortRuns = 8;

void check(cublasStatus_t status, const char* call, const BlasProblem& problem) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail<DeviceError>(kOp, "{} of cuBLASLt failed for {}: {}", call, to_string(problem),
                    cublaslt().status_string(status));
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::e4m3:
      return CUDA_R_8F_E4M3;
    case DType::e5m2:
      return CUDA_R_8F_E5M2;
    default:
      fail<ShapeError>(kOp, "cuBLASLt takes no operands of type {}", name_of(dtype));
  }
}

/// By BlasProblem::Scale.
constexpr struct {
  int32_t mode;
  const char* suffix;  ///< of a type in to_string()
} kScales[] = {{CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, ""},
               {CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, " by tensor"},
               {CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, " by row"},
               {CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F, " by 1x128"},
               {CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F, " by 128x128"},
               {CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0, " by 1x32"}};
const auto& row_of(BlasProblem::Scale scale) { return kScales[static_cast<size_t>(scale)]; }

/// The largest power of two up to 256 that divides the address: what the algorithm may rely on.
uint32_t alignment_of(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return static_cast<uint32_t>(std::min<uintptr_t>(address & (~address + 1), 256));
}

struct Key {
  BlasProblem problem;
  uint32_t a_alignment, b_alignment, d_alignment;
  int32_t sm_count;  ///< 0: all of the GPU's
  auto operator<=>(const Key&) const = default;
};

/// Descriptors of one problem, destroyed with it.
struct Plan {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  double milliseconds = 0;
  int candidates = 0;

  Plan() = default;
  Plan(const Plan&) = delete;
  ~Plan() {
    const CublasLt& lt = cublaslt();
    for (cublasLtMatrixLayout_t layout : {a, b, d}) {
      if (layout) lt.layout_destroy(layout);
    }
    if (desc) lt.desc_destroy(desc);
  }
};

struct Preference {
  cublasLtMatmulPreference_t handle = nullptr;
  explicit Preference(const BlasProblem& p) {
    check(cublaslt().preference_create(&handle), "PreferenceCreate", p);
  }
  ~Preference() { cublaslt().preference_destroy(handle); }
  Preference(const Preference&) = delete;
};

void describe(Plan& plan, const Key& key) {
  const BlasProblem& p = key.problem;
  const CublasLt& lt = cublaslt();
  auto layout = [&](cublasLtMatrixLayout_t& handle, DType type, int64_t rows, int64_t cols, int64_t ld) {
    check(lt.layout_create(&handle, type_of(type), rows, cols, ld), "MatrixLayoutCreate", p);
  };
  auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check(lt.desc_set(plan.desc, attribute, &value, sizeof value), "MatmulDescSetAttribute", p);
  };
  const bool a_transposed = p.a_layout == BlasProblem::Operand::transposed,
             b_transposed = p.b_layout == BlasProblem::Operand::transposed;
  check(lt.desc_create(&plan.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "MatmulDescCreate", p);
  set(CUBLASLT_MATMUL_DESC_TRANSA, a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (p.sums == BlasProblem::Sums::fast) set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
  if (key.sm_count > 0) set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, key.sm_count);
  if (p.a_scale != BlasProblem::Scale::none) set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, row_of(p.a_scale).mode);
  if (p.b_scale != BlasProblem::Scale::none) set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, row_of(p.b_scale).mode);
  layout(plan.a, p.a, a_transposed ? p.k : p.m, a_transposed ? p.m : p.k, p.lda);
  layout(plan.b, p.b, b_transposed ? p.n : p.k, b_transposed ? p.k : p.n, p.ldb);
  layout(plan.d, p.d, p.m, p.n, p.ldd);
}

void set_scales(Plan& plan, const BlasProblem& p, const BlasOperands& operands) {
  const CublasLt& lt = cublaslt();
  auto set = [&](cublasLtMatmulDescAttributes_t attribute, const void* scale) {
    check(lt.desc_set(plan.desc, attribute, &scale, sizeof scale), "MatmulDescSetAttribute", p);
  };
  if (p.a_scale != BlasProblem::Scale::none) set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.a_scale);
  if (p.b_scale != BlasProblem::Scale::none) set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.b_scale);
}

}  // namespace

std::string to_string(const BlasProblem& p) {
  auto letter = [](BlasProblem::Operand o) { return o == BlasProblem::Operand::transposed ? 'T' : 'N'; };
  return fmt::format("{}{} {}{} x {}{} -> {} m {} n {} k {}{}", letter(p.a_layout), letter(p.b_layout),
                     name_of(p.a), row_of(p.a_scale).suffix, name_of(p.b), row_of(p.b_scale).suffix,
                     name_of(p.d), p.m, p.n, p.k,
                     p.result == BlasProblem::Result::accumulate ? " accumulated" : "");
}

namespace {

// What to_string() leaves out also tells problems apart.
std::string text_of(const Key& key) {
  const BlasProblem& p = key.problem;
  return fmt::format("{}{} ld {} {} {} aligned {} {} {}{}", to_string(p),
                     p.sums == BlasProblem::Sums::fast ? " fast" : "", p.lda, p.ldb, p.ldd, key.a_alignment,
                     key.b_alignment, key.d_alignment,
                     key.sm_count > 0 ? fmt::format(" on {} SMs", key.sm_count) : "");
}

cublasLtMatmulAlgo_t parse_algorithm(const BlasPlans::Choice& choice) {
  constexpr size_t kDigits = 16;
  cublasLtMatmulAlgo_t algorithm{};
  static_assert(kDigits * std::size(cublasLtMatmulAlgo_t{}.data) == BlasPlans::kAlgorithmDigits);
  if (!BlasPlans::is_algorithm(choice.algorithm)) {
    fail<ConfigError>(kOp, "'{}' is no algorithm for {}: expected {} hexadecimal digits", choice.algorithm,
                      choice.problem, BlasPlans::kAlgorithmDigits);
  }
  for (size_t i = 0; i < std::size(algorithm.data); ++i) {
    const char* word = choice.algorithm.data() + i * kDigits;
    std::from_chars(word, word + kDigits, algorithm.data[i], 16);
  }
  return algorithm;
}

}  // namespace

struct BlasPlans::State {
  int device;
  cublasLtHandle_t handle = nullptr;
  Tensor workspace{nullptr, DType::u8, {0}};
  int32_t sm_count = 0;
  bool latched = false;
  std::map<Key, Plan> plans;
  std::set<Key> unsupported;

  Selection selection = Selection::first;
  std::map<std::string, cublasLtMatmulAlgo_t> adopted;  ///< by text_of(key)

  Key key_of(const BlasProblem& problem, const BlasOperands& operands) const {
    return {problem, alignment_of(operands.a), alignment_of(operands.b), alignment_of(operands.d), sm_count};
  }
  void plan_and_run(Stream& stream, const Key& key, const BlasOperands& operands);
  std::vector<cublasLtMatmulHeuristicResult_t> proposals(const Plan& plan, const Key& key) const;
  void choose_and_run(Stream& stream, Plan& plan, const Key& key, const BlasOperands& operands) const;
  cublasStatus_t measure(Stream& stream, Plan& plan, const BlasProblem& p,
                         const BlasOperands& operands) const;
  bool takes(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const;
  cublasStatus_t run(Stream& stream, const Plan& plan, const BlasProblem& problem,
                     const BlasOperands& operands) const;
};

bool BlasPlans::State::takes(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublaslt().algorithm_check(handle, plan.desc, plan.a, plan.b, plan.d, plan.d, &algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= static_cast<size_t>(workspace.bytes());
}

cublasStatus_t BlasPlans::State::run(Stream& stream, const Plan& plan, const BlasProblem& problem,
                                     const BlasOperands& operands) const {
  const float alpha = 1, beta = problem.result == BlasProblem::Result::accumulate ? 1.0f : 0.0f;
  return cublaslt().matmul(handle, plan.desc, &alpha, operands.a, plan.a, operands.b, plan.b, &beta,
                           operands.d, plan.d, operands.d, plan.d, &plan.algorithm, workspace.data,
                           workspace.bytes(), static_cast<cudaStream_t>(stream.native()));
}

std::vector<cublasLtMatmulHeuristicResult_t> BlasPlans::State::proposals(const Plan& plan,
                                                                         const Key& key) const {
  const BlasProblem& p = key.problem;
  const CublasLt& lt = cublaslt();
  const Preference preference(p);
  auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(lt.preference_set(preference.handle, attribute, &value, sizeof value), "PreferenceSetAttribute", p);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace.bytes()));
  // Partial sums stay f32 whatever D is; they may be accumulated in D only if D is f32.
  const uint32_t in_place = p.d == DType::f32 ? CUBLASLT_REDUCTION_SCHEME_INPLACE : 0;
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | in_place);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.a_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.b_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.d_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.d_alignment);
  std::vector<cublasLtMatmulHeuristicResult_t> results(kCandidates);
  int found = 0;
  const cublasStatus_t status = lt.heuristic(handle, plan.desc, plan.a, plan.b, plan.d, plan.d,
                                             preference.handle, kCandidates, results.data(), &found);
  // What the library does not have it may call an invalid value, such as one kind of scale with another kind
  // of operand.
  const bool is_refused = status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
  if (is_refused || (status == CUBLAS_STATUS_SUCCESS && found == 0)) {
    fail<NoAlgorithm>(kOp, "cuBLASLt has no algorithm for {} within {} bytes of workspace ({})", to_string(p),
                      workspace.bytes(), lt.status_string(status));
  }
  check(status, "MatmulAlgoGetHeuristic", p);
  results.resize(found);
  return results;
}

// Remembers the algorithm's time in the plan if it runs.
cublasStatus_t BlasPlans::State::measure(Stream& stream, Plan& plan, const BlasProblem& p,
                                         const BlasOperands& operands) const {
  cublasStatus_t status = run(stream, plan, p, operands);  // loads the kernel
  Event start(stream.device()), stop(stream.device());
  double fastest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kMeasurements && status == CUBLAS_STATUS_SUCCESS; ++i) {
    const int runs = fastest < kShortMilliseconds ? kShortRuns : 1;
    start.record(stream);
    for (int r = 0; r < runs && status == CUBLAS_STATUS_SUCCESS; ++r) status = run(stream, plan, p, operands);
    stop.record(stream);
    stop.synchronize();
    fastest = std::min(fastest, stop.milliseconds_since(start) / runs);
  }
  plan.milliseconds = fastest;
  return status;
}

// A proposal that the library then cannot run is passed over: its heuristics do not consider everything.
void BlasPlans::State::choose_and_run(Stream& stream, Plan& plan, const Key& key,
                                      const BlasOperands& operands) const {
  const std::vector<cublasLtMatmulHeuristicResult_t> proposed = proposals(plan, key);
  const cublasLtMatmulAlgo_t* best = nullptr;
  double best_milliseconds = 0;
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS, failed = CUBLAS_STATUS_SUCCESS;
  for (const cublasLtMatmulHeuristicResult_t& proposal : proposed) {
    plan.algorithm = proposal.algo;
    status = proposal.state;
    if (status == CUBLAS_STATUS_SUCCESS && selection == Selection::first) {
      status = run(stream, plan, key.problem, operands);
      if (status == CUBLAS_STATUS_SUCCESS) return;
    } else if (status == CUBLAS_STATUS_SUCCESS) {
      status = measure(stream, plan, key.problem, operands);
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
      failed = status;
    } else if (++plan.candidates == 1 || plan.milliseconds < best_milliseconds) {
      best_milliseconds = plan.milliseconds;
      best = &proposal.algo;
    }
  }
  if (!best) {
    fail<NoAlgorithm>(kOp,
                      "cuBLASLt runs none of the {} algorithms that it proposes for {}: the last says {}",
                      proposed.size(), to_string(key.problem), cublaslt().status_string(failed));
  }
  plan.algorithm = *best;
  plan.milliseconds = best_milliseconds;
  check(run(stream, plan, key.problem, operands), "Matmul", key.problem);
}

void BlasPlans::State::plan_and_run(Stream& stream, const Key& key, const BlasOperands& operands) {
  const BlasProblem& p = key.problem;
  if (latched) fail<DeviceError>(kOp, "{} was not planned before the first step", to_string(p));
  if (!handle) check(cublaslt().create(&handle), "Create", p);
  auto [it, is_new] = plans.try_emplace(key);
  Plan& plan = it->second;
  try {
    describe(plan, key);
    set_scales(plan, p, operands);
    const auto known = adopted.find(text_of(key));
    if (known != adopted.end() && takes(plan, known->second)) {
      plan.algorithm = known->second;
      if (run(stream, plan, p, operands) == CUBLAS_STATUS_SUCCESS) return;
    }
    choose_and_run(stream, plan, key, operands);
  } catch (...) {
    plans.erase(it);
    throw;
  }
}

BlasPlans::BlasPlans(int device) : state_(std::make_unique<State>()) { state_->device = device; }

BlasPlans::~BlasPlans() {
  if (state_->handle) cublaslt().destroy(state_->handle);
}

void BlasPlans::set_workspace(const Tensor& workspace) {
  if (state_->workspace.bytes() != workspace.bytes()) {
    state_->plans.clear();
    state_->unsupported.clear();
  }
  state_->workspace = workspace;
}

void BlasPlans::set_sm_count(int sms) {
  if (const int all = cuda::sm_count(state_->device); sms < 0 || sms > all) {
    fail<DeviceError>(kOp, "products cannot be planned for {} SMs: GPU {} has {}", sms, state_->device, all);
  }
  state_->sm_count = sms;
}

void BlasPlans::select(Selection selection) { state_->selection = selection; }
void BlasPlans::latch() { state_->latched = true; }
size_t BlasPlans::size() const { return state_->plans.size(); }

void BlasPlans::run(Stream& stream, const BlasProblem& problem, const BlasOperands& operands) {
  const Key key = state_->key_of(problem, operands);
  const auto known = state_->plans.find(key);
  if (known == state_->plans.end()) return state_->plan_and_run(stream, key, operands);
  set_scales(known->second, problem, operands);
  check(state_->run(stream, known->second, problem, operands), "Matmul", problem);
}

bool BlasPlans::run_if_supported(Stream& stream, const BlasProblem& problem, const BlasOperands& operands) {
  const Key key = state_->key_of(problem, operands);
  if (state_->unsupported.contains(key)) return false;
  try {
    run(stream, problem, operands);
    return true;
  } catch (const NoAlgorithm& error) {
    log::warning("{}: the sum is made in two steps", error.what());
    state_->unsupported.insert(key);
    return false;
  }
}

std::vector<BlasPlans::Choice> BlasPlans::choices() const {
  std::vector<Choice> out;
  for (const auto& [key, plan] : state_->plans) {
    std::string algorithm;
    for (uint64_t word : plan.algorithm.data) algorithm += fmt::format("{:016x}", word);
    out.push_back({text_of(key), std::move(algorithm), plan.milliseconds, plan.candidates});
  }
  return out;
}

void BlasPlans::adopt(const std::vector<Choice>& choices) {
  for (const Choice& choice : choices) state_->adopted[choice.problem] = parse_algorithm(choice);
  for (auto& [key, plan] : state_->plans) {
    const auto known = state_->adopted.find(text_of(key));
    if (known != state_->adopted.end() && state_->takes(plan, known->second)) plan.algorithm = known->second;
  }
}

std::string blas_library() {
  const size_t v = cublaslt().version();
  return fmt::format("cuBLASLt {}.{}.{}", v / 10000, v % 10000 / 100, v % 100);
}

}  // namespace ottava::cuda
