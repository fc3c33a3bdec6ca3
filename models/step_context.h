#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>

#include "core/cost.h"
#include "core/memory/arena.h"
#include "core/stream.h"
#include "models/float8_state.h"
#include "parallel/fsdp.h"
#include "parallel/tensor_parallel.h"

namespace ottava {

/// Host seconds per label, for the benchmark. Times of nested scopes are not counted twice.
class StepProfile {
 public:
  void enter(std::string_view label);
  void leave();
  const std::map<std::string, double, std::less<>>& seconds() const { return seconds_; }
  void clear() { seconds_.clear(); }

 private:
  using Clock = std::chrono::steady_clock;
  std::map<std::string, double, std::less<>> seconds_;
  std::vector<std::string> stack_;
  Clock::time_point last_;
};

/// Everything a rank's step works with, passed explicitly: ranks may be threads of one process.
struct StepContext {
  Stream& stream;
  Arena& arena;
  Fsdp& parameters;
  TensorParallelGroup& tensor_parallel;
  DType compute = DType::bf16;  ///< of activations and of the parameters' working copies
  StepProfile* profile = nullptr;
  Float8State* float8 = nullptr;  ///< null without FP8
  bool is_recomputing =
      false;  ///< backward repeats a forward pass: amaxes are known, nothing is counted twice

  /// Labels what happens while it lives: costs on `meta`, times elsewhere if a profile is kept.
  class Scope {
   public:
    Scope(const StepContext& context, std::string_view label);
    ~Scope();
    Scope(const Scope&) = delete;

   private:
    CostRecorder::Scope cost_;
    StepProfile* profile_;
  };

  Allocation scratch(std::string_view name, DType dtype, Shape shape) const {
    return arena.allocate(name, dtype, shape, MemoryCategory::scratch);
  }
  Allocation activation(std::string_view name, DType dtype, Shape shape) const {
    return arena.allocate(name, dtype, shape, MemoryCategory::activations);
  }
};

}  // namespace ottava
