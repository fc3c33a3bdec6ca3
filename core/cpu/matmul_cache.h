#pragma once

#include <map>

#include "core/cpu/bf16_products.h"
#include "core/cpu/dnnl_adapter.h"
#include "core/tensor.h"

namespace ottava::cpu {

/// How one rank multiplies: directly or widened, with oneDNN primitives that are made once per problem and
/// number of threads, and the scratchpad that they share. References stay valid for the cache's life. Used by
/// one thread at a time, like the stream that owns it.
class MatmulCache {
 public:
  const ProductChoice& products() const { return products_; }
  /// Chooses how to multiply; without this call, usual_products() hold. Throws DeviceError if this machine
  /// lacks the instructions.
  void set_products(ProductChoice products);
  /// One product computed by `threads` threads together.
  const Gemm& whole(const GemmProblem& problem, int threads);
  /// Products computed by one thread each, in at least `lanes` lanes, for use inside a parallel region.
  const Gemm& tile(const GemmProblem& problem, int lanes);
  /// gemm_takes_scale(), evaluated once per problem.
  bool takes_scale(const GemmProblem& problem);

  void set_workspace(Tensor workspace) { workspace_ = workspace; }
  const Tensor& workspace() const { return workspace_; }
  /// Number of primitives made so far; it stays the same after the first step.
  size_t size() const { return gemms_.size(); }

 private:
  struct Key {
    GemmProblem problem;
    int threads, lanes;
    auto operator<=>(const Key&) const = default;
  };
  const Gemm& get(const Key& key);

  ProductChoice products_ = usual_products();
  std::map<Key, Gemm> gemms_;
  std::map<GemmProblem, bool> takes_scale_;
  Tensor workspace_{nullptr, DType::u8, {0}};
};

}  // namespace ottava::cpu
