#include "core/cpu/matmul_cache.h"

namespace ottava::cpu {

const Gemm& MatmulCache::whole(const GemmProblem& problem, int threads) { return get({problem, threads, 1}); }
const Gemm& MatmulCache::tile(const GemmProblem& problem, int lanes) { return get({problem, 1, lanes}); }

const Gemm& MatmulCache::get(const Key& key) {
  auto found = gemms_.find(key);
  if (found == gemms_.end()) {
    found = gemms_.emplace(key, Gemm(key.problem, key.threads, key.lanes)).first;
  }
  return found->second;
}

}  // namespace ottava::cpu
