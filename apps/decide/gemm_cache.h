#pragma once

#include "apps/decide/measurement_cache.h"

namespace ottava {

/// Algorithms of matrix products: a file for each version of the library on each model of GPU, in which an
/// entry "gemm <problem>" has the algorithm as its value. `library` is both: "cuBLASLt 13.1.0 on NVIDIA
/// H200".
MeasurementCache gemm_cache(std::string_view setting, std::string_view library);

}  // namespace ottava
