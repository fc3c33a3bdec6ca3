#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/cost.h"
#include "core/memory/arena.h"
#include "core/stream.h"
#include "models/float8_state.h"
#include "parallel/sharding/fsdp.h"
#include "parallel/sharding/tensor_parallel.h"

namespace ottava {

/// Time per label, for the benchmark: between events on the stream, so that on a GPU it is what the device
/// took and not what the host took to enqueue it. Times of nested scopes are not counted twice.
class StepProfile {
 public:
  explicit StepProfile(Stream& stream) : stream_(stream) {}
  void enter(std::string_view label);
  void leave();
  /// Of all steps so far; waits for the stream.
  const std::map<std::string, double, std::less<>>& seconds();

 private:
  struct Mark {
    Event at;
    std::string label;  ///< of the time since the mark before it; empty: no scope was open
  };
  void mark();
  Stream& stream_;
  std::vector<Mark> marks_;
  std::vector<std::string> stack_;
  std::map<std::string, double, std::less<>> seconds_;
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
