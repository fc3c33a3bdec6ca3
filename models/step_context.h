#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "core/cost.h"
#include "core/memory/arena.h"
#include "core/stream.h"
#include "core/trace/step_profile.h"
#include "models/float8_state.h"
#include "parallel/sharding/context_parallel.h"
#include "parallel/sharding/fsdp.h"
#include "parallel/sharding/tensor_parallel.h"

namespace ottava {

struct StepContext;
/// Weight gradients that are left for later, in order (W of a pipeline's split backward).
using DeferredGradients = std::vector<std::function<void(const StepContext&)>>;

/// Everything a rank's step works with, passed explicitly: ranks may be threads of one process.
struct StepContext {
  Stream& stream;
  Arena& arena;
  Fsdp& parameters;
  TensorParallelGroup& tensor_parallel;
  DType compute = DType::bf16;  ///< of activations and of the parameters' working copies
  ContextParallelGroup context_parallel = {};
  StepProfile* profile = nullptr;
  Float8State* float8 = nullptr;  ///< null without FP8
  /// backward repeats a forward pass: amaxes are known, nothing is counted twice
  bool is_recomputing = false;
  DeferredGradients* deferred = nullptr;  ///< not null: backward leaves weight gradients of products here

  /// Labels what happens while it lives: costs on `meta`; elsewhere times, if there is a profile.
  class Scope {
   public:
    Scope(const StepContext& context, std::string_view label);
    ~Scope();
    Scope(const Scope&) = delete;

   private:
    CostRecorder::Scope cost_;
    StepProfile::Scope profile_;
  };

  /// The context for what backward makes again, which was measured and counted before.
  StepContext recomputing() const {
    StepContext copy = *this;
    copy.is_recomputing = true;
    return copy;
  }
  Allocation scratch(std::string_view name, DType dtype, Shape shape) const {
    return arena.allocate(name, dtype, shape, MemoryCategory::scratch);
  }
  Allocation activation(std::string_view name, DType dtype, Shape shape) const {
    return arena.allocate(name, dtype, shape, MemoryCategory::activations);
  }
};

}  // namespace ottava
