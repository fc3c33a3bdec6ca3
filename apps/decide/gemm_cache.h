#pragma once

#include "apps/decide/measurement_cache.h"

namespace ottava {

/// The cache of algorithms for matrix products: one file per version of the library and model of GPU, in
/// which an entry "gemm <problem>" has the algorithm as its value. `library` names both: "cuBLASLt 13.1.0 on
/// NVIDIA H200".
MeasurementCache gemm_cache(std::string_view setting, std::string_view library);

}  // namespace ottava
