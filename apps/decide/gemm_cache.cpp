#include "apps/decide/gemm_cache.h"

#include "apps/decide/rehearsal.h"
#include "core/cuda/blas_plans.h"

namespace ottava {

MeasurementCache gemm_cache(std::string_view setting, std::string_view library) {
  static constexpr MeasurementCache::Kind kGemms{.name = "gemm",
                                                 .title = "matrix products by ",
                                                 .things = "Algorithms of matrix products",
                                                 .is_entry = [](const Decisions::Entry& e) {
                                                   return e.name.starts_with(kGemmDecisions) &&
                                                          cuda::BlasPlans::is_algorithm(e.value);
                                                 }};
  return {kGemms, setting, library};
}

}  // namespace ottava
