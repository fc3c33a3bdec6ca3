#include "core/cuda/cublaslt_library.h"

#include <fmt/core.h>

#include "core/cuda/shared_library.h"

namespace ottava::cuda {
namespace {

CublasLt load() {
  const SharedLibrary library(fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR),
                              "the NVIDIA cuBLAS library");
  CublasLt lt{};
  library.find("cublasLtCreate", lt.create);
  library.find("cublasLtDestroy", lt.destroy);
  library.find("cublasLtGetStatusString", lt.status_string);
  library.find("cublasLtMatmulDescCreate", lt.desc_create);
  library.find("cublasLtMatmulDescDestroy", lt.desc_destroy);
  library.find("cublasLtMatmulDescSetAttribute", lt.desc_set);
  library.find("cublasLtMatrixLayoutCreate", lt.layout_create);
  library.find("cublasLtMatrixLayoutDestroy", lt.layout_destroy);
  library.find("cublasLtMatmulPreferenceCreate", lt.preference_create);
  library.find("cublasLtMatmulPreferenceDestroy", lt.preference_destroy);
  library.find("cublasLtMatmulPreferenceSetAttribute", lt.preference_set);
  library.find("cublasLtMatmulAlgoGetHeuristic", lt.heuristic);
  library.find("cublasLtMatmulAlgoCheck", lt.algorithm_check);
  library.find("cublasLtGetVersion", lt.version);
  library.find("cublasLtMatmul", lt.matmul);
  return lt;
}

}  // namespace

const CublasLt& cublaslt() {
  static const CublasLt library = load();
  return library;
}

}  // namespace ottava::cuda
