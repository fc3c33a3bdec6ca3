#pragma once

#include <cublasLt.h>

namespace ottava::cuda {

/// The entry points of cuBLASLt that are used. The library is opened when the first product is planned, so
/// the program also starts where it is not installed.
struct CublasLt {
  decltype(&::cublasLtCreate) create;
  decltype(&::cublasLtDestroy) destroy;
  decltype(&::cublasLtGetStatusString) status_string;
  decltype(&::cublasLtMatmulDescCreate) desc_create;
  decltype(&::cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&::cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&::cublasLtMatrixLayoutCreate) layout_create;
  decltype(&::cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&::cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&::cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&::cublasLtMatmulAlgoCheck) algorithm_check;
  decltype(&::cublasLtGetVersion) version;
  decltype(&::cublasLtMatmul) matmul;
};

/// Throws DeviceError, naming the places searched, when the library cannot be opened.
const CublasLt& cublaslt();

}  // namespace ottava::cuda
