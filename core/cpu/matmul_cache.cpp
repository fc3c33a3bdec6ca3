#include "core/cpu/matmul_cache.h"

#include "core/error.h"

namespace ottava::cpu {

void MatmulCache::set_products(ProductChoice products) {
  const bool direct = products.matmul == Bf16Products::direct || products.attention == Bf16Products::direct;
  if (direct && !multiplies_bf16_directly())
    fail<DeviceError>(
        "cpu", "bf16 products are set to direct, but this machine has no bf16 instructions: use widened");
  products_ = products;
}

const Gemm& MatmulCache::whole(const GemmProblem& problem, int threads) { return get({problem, threads, 1}); }
const Gemm& MatmulCache::tile(const GemmProblem& problem, int lanes) { return get({problem, 1, lanes}); }

bool MatmulCache::takes_scale(const GemmProblem& problem) {
  auto found = takes_scale_.find(problem);
  if (found == takes_scale_.end()) found = takes_scale_.emplace(problem, gemm_takes_scale(problem)).first;
  return found->second;
}

const Gemm& MatmulCache::get(const Key& key) {
  auto found = gemms_.find(key);
  if (found == gemms_.end()) {
    found = gemms_.emplace(key, Gemm(key.problem, key.threads, key.lanes)).first;
  }
  return found->second;
}

}  // namespace ottava::cpu
