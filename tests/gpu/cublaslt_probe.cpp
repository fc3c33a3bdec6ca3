// Which products this cuBLASLt offers on this GPU, asked of its heuristic with the preferences of
// core/cuda/blas_plans.cpp: every pair of operand types times scale mode, result type, accumulation into D,
// fast accumulation and layout. With scales of rows or blocks the first that is offered also runs once, on
// zeros: what the heuristic offers may be refused then. One JSON object a line, after a line `asking NUMBER`:
// a fault ends the program, and the question after it can be the next one's first.
//     ottava_cublaslt_probe [--dry-run] [--from NUMBER]        --dry-run lists the questions without a GPU
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "core/cuda/cublaslt_library.h"
#include "core/cuda/runtime.h"
#include "core/error.h"

using namespace ottava;

namespace {

constexpr int64_t kSize = 4096;
constexpr uint32_t kAlignment = 256;  ///< of memory that cudaMalloc gives
constexpr size_t kWorkspace = 32 << 20;

struct Pair {
  const char* name;
  cudaDataType_t a, b;
  bool one_byte;
};
constexpr Pair kPairs[] = {
    {"f32 x f32", CUDA_R_32F, CUDA_R_32F, false},
    {"bf16 x bf16", CUDA_R_16BF, CUDA_R_16BF, false},
    {"e4m3 x e4m3", CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, true},
    {"e5m2 x e4m3", CUDA_R_8F_E5M2, CUDA_R_8F_E4M3, true},
    {"e4m3 x e5m2", CUDA_R_8F_E4M3, CUDA_R_8F_E5M2, true},
    {"e5m2 x e5m2", CUDA_R_8F_E5M2, CUDA_R_8F_E5M2, true},
};

struct Scale {
  const char* name;
  int a, b;  ///< cublasLtMatmulMatrixScale_t; -1: none
};
constexpr Scale kNoScale{"none", -1, -1};
constexpr Scale kScales[] = {
    {"tensor", CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F},
    {"rows", CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F},
    // Training's: the library's A is the weight, its B activations or their gradients
    // (fp8/scaled_matmul_cuda.cpp).
    {"128x128, 1x128", CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F},
    {"1x128, 128x128", CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F},
    {"1x128, 1x128", CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F},
    {"mx 1x32", CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0},
};

struct Question {
  Pair pair;
  Scale scale;
  cudaDataType_t d = CUDA_R_32F;
  bool accumulate = false, fast = false, a_transposed = true, b_transposed = false;
  int64_t m = kSize, n = kSize, k = kSize;
};

std::string describe(const Question& q) {
  return fmt::format(
      R"("types": "{}", "scales": "{}", "result": "{}", "beta": {}, "fast_accumulation": {}, "layout": "{}{}", "m": {}, "n": {}, "k": {})",
      q.pair.name, q.scale.name, q.d == CUDA_R_32F ? "f32" : "bf16", q.accumulate ? 1 : 0, q.fast,
      q.a_transposed ? "T" : "N", q.b_transposed ? "T" : "N", q.m, q.n, q.k);
}

std::vector<Question> questions() {
  std::vector<Question> all;
  auto add = [&](Question q) {
    for (cudaDataType_t d : {CUDA_R_32F, CUDA_R_16BF}) {
      for (bool accumulate : {false, true}) {
        if (d == CUDA_R_16BF && (accumulate || q.pair.a == CUDA_R_32F)) continue;
        q.d = d, q.accumulate = accumulate;
        all.push_back(q);
      }
    }
  };
  for (const Pair& pair : kPairs) {
    for (int layout = 0; layout < 4; ++layout) {
      Question q{.pair = pair, .scale = kNoScale};
      q.a_transposed = (layout & 1) == 0, q.b_transposed = (layout & 2) != 0;
      if (!pair.one_byte) {
        add(q);
        continue;
      }
      for (const Scale& scale : kScales) {
        for (bool fast : {false, true}) {
          q.scale = scale, q.fast = fast;
          add(q);
        }
      }
    }
    // How rows that are no multiple of 16 are taken.
    for (int64_t m : {kSize + 8, kSize + 1}) {
      Question q{.pair = pair, .scale = pair.one_byte ? kScales[0] : kNoScale};
      q.m = m;
      add(q);
    }
    // A product of a size that tests have, with K of no whole block.
    for (const Scale& scale : kScales) {
      Question q{.pair = pair, .scale = pair.one_byte ? scale : kNoScale};
      q.m = 96, q.n = 64, q.k = 160;
      add(q);
      if (!pair.one_byte) break;
    }
  }
  return all;
}

struct Answer {
  int algorithms = 0;
  size_t workspace = 0;
  std::string status;
  std::string ran = "";  ///< what running the first gave; empty: none ran
};

/// Zeros for any of the questions' products.
class Memory {
 public:
  explicit Memory(void* stream) : stream_(stream) {
    for (void*& data : matrices) data = zeros(static_cast<size_t>(kSize) * (kSize + 8) * sizeof(float));
    for (void*& data : scales) data = zeros(static_cast<size_t>(kSize) * (kSize / 32) * sizeof(float));
    workspace = zeros(kWorkspace);
    cuda::stream_synchronize(stream);
  }
  ~Memory() {
    for (void* data : {matrices[0], matrices[1], matrices[2], scales[0], scales[1], workspace})
      cuda::release(0, data);
  }
  Memory(const Memory&) = delete;

  void* matrices[3] = {};  ///< A, B, D
  void* scales[2] = {};
  void* workspace = nullptr;
  void* stream() const { return stream_; }

 private:
  void* zeros(size_t bytes) const {
    void* data = cuda::allocate(0, bytes);
    cuda::fill_zero(data, bytes, stream_);
    return data;
  }
  void* stream_;
};

Answer ask(const cuda::CublasLt& lt, cublasLtHandle_t handle, const Memory& memory, const Question& q) {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasStatus_t status = lt.desc_create(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  auto set = [&](cublasLtMatmulDescAttributes_t what, const auto& value) {
    if (status == CUBLAS_STATUS_SUCCESS) status = lt.desc_set(desc, what, &value, sizeof value);
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, q.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, q.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (q.scale.a >= 0) {
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(q.fast));
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, q.scale.a);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, q.scale.b);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, memory.scales[0]);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, memory.scales[1]);
  }
  auto layout = [&](cublasLtMatrixLayout_t* out, cudaDataType_t type, bool transposed, int64_t rows,
                    int64_t columns) {
    if (transposed) std::swap(rows, columns);
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = lt.layout_create(out, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows);
    }
  };
  layout(&a, q.pair.a, q.a_transposed, q.m, q.k);
  layout(&b, q.pair.b, q.b_transposed, q.k, q.n);
  layout(&d, q.d, false, q.m, q.n);
  if (status == CUBLAS_STATUS_SUCCESS) status = lt.preference_create(&preference);
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
    if (status == CUBLAS_STATUS_SUCCESS) status = lt.preference_set(preference, what, &value, sizeof value);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspace));
  const uint32_t in_place = q.d == CUDA_R_32F ? CUBLASLT_REDUCTION_SCHEME_INPLACE : 0;
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | in_place);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kAlignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kAlignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kAlignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kAlignment);
  cublasLtMatmulHeuristicResult_t found[8] = {};
  Answer answer;
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = lt.heuristic(handle, desc, a, b, d, d, preference, 8, found, &answer.algorithms);
  }
  for (int i = 0; i < answer.algorithms; ++i)
    answer.workspace = std::max(answer.workspace, found[i].workspaceSize);
  answer.status = lt.status_string(status);
  const bool is_doubtful = q.scale.a >= 0 && q.scale.a != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  if (is_doubtful && answer.algorithms > 0) {
    const float alpha = 1, beta = q.accumulate ? 1 : 0;
    const auto& [left, right, out] = memory.matrices;
    status = lt.matmul(handle, desc, &alpha, left, a, right, b, &beta, out, d, out, d, &found[0].algo,
                       memory.workspace, kWorkspace, static_cast<cudaStream_t>(memory.stream()));
    cuda::stream_synchronize(memory.stream());
    answer.ran = lt.status_string(status);
  }
  if (preference) lt.preference_destroy(preference);
  for (cublasLtMatrixLayout_t made : {a, b, d}) {
    if (made) lt.layout_destroy(made);
  }
  if (desc) lt.desc_destroy(desc);
  return answer;
}

void probe(size_t from) {
  if (cuda::device_count() == 0) fail<DeviceError>("cuda", "{}", cuda::unavailable_reason());
  void* stream = cuda::stream_create(0);
  const cuda::CublasLt& lt = cuda::cublaslt();
  cublasLtHandle_t handle = nullptr;
  if (lt.create(&handle) != CUBLAS_STATUS_SUCCESS) fail<DeviceError>("cublaslt", "cublasLtCreate failed");
  {
    const Memory memory(stream);
    const std::vector<Question> all = questions();
    for (size_t number = from; number < all.size(); ++number) {
      std::printf("asking %zu %s\n", number, describe(all[number]).c_str());
      Answer answer = ask(lt, handle, memory, all[number]);
      std::printf("{%s, \"algorithms\": %d, \"workspace_bytes\": %zu, \"status\": \"%s\", \"ran\": \"%s\"}\n",
                  describe(all[number]).c_str(), answer.algorithms, answer.workspace, answer.status.c_str(),
                  answer.ran.c_str());
    }
  }
  lt.destroy(handle);
  cuda::stream_destroy(stream);
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  if (argc > 1 && std::strcmp(argv[1], "--dry-run") == 0) {
    for (const Question& q : questions()) std::printf("{%s, \"algorithms\": null}\n", describe(q).c_str());
    return 0;
  }
  try {
    probe(argc > 2 && std::strcmp(argv[1], "--from") == 0 ? std::strtoul(argv[2], nullptr, 10) : 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ottava_cublaslt_probe: %s\n", error.what());
    return 1;
  }
  return 0;
}
