#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/recorded_call.h"

namespace ottava {

/// The arithmetic a matrix or attention operation runs in; decides which peak it is measured against.
enum class Precision { fp32, bf16, fp8 };
std::string_view name_of(Precision precision);

/// What one call of an operation costs: floating-point operations as computed (causal attention counts only
/// what is computed) and bytes that must cross memory at least once.
struct OpCost {
  std::string_view op;  ///< a literal: "matmul", "attention_forward", ...
  Precision precision = Precision::fp32;
  double flops = 0;
  double bytes = 0;
  std::string_view variant = {};  ///< a literal; tells apart what one operation does: "input gradient"
};

/// Calls of one operation on operands of the same dtypes and shapes.
struct RecordedOperation {
  std::string op, variant;
  Precision precision = Precision::fp32;
  std::string operands;  ///< "bf16 [2048, 256] f32 [2048]", in the order of the arguments
  int64_t calls = 0;
  double flops = 0, bytes = 0;  ///< of one call
  RecordedCall call;            ///< the first
};

/// Sums costs per (label, op, precision). Labels name the caller ("layers.3.attention.wqkv") and nest by
/// scope.
class CostRecorder {
 public:
  struct Total {
    std::string label;
    std::string op;
    Precision precision;
    int64_t calls = 0;
    double flops = 0, bytes = 0;
  };

  void record(const OpCost& cost);
  /// Records the call op(stream, args...), so that it can be made again.
  template <class... Parameters>
  void record(const OpCost& cost, void (*op)(Stream&, Parameters...),
              const std::decay_t<Parameters>&... args) {
    record(cost);
    RecordedOperation& operation = operation_of(cost, recorded::operands_text(args...));
    if (operation.calls++ == 0) operation.call = recorded::make_call(op, args...);
  }
  /// In first-recorded order.
  std::vector<Total> totals() const;
  /// The distinct ones among those that can be made again, in first-recorded order.
  const std::vector<RecordedOperation>& operations() const { return operations_; }
  double flops(Precision precision) const;
  double bytes() const;
  /// Largest scratchpad asked for by a library on the target; becomes a planned workspace.
  void need_workspace(int64_t bytes);
  int64_t workspace_bytes() const { return workspace_bytes_; }
  void clear();

  /// Adds `label` to what is recorded while it lives.
  class Scope {
   public:
    Scope(CostRecorder* recorder, std::string label);
    ~Scope();
    Scope(const Scope&) = delete;

   private:
    CostRecorder* recorder_;
    std::string previous_;
  };

 private:
  RecordedOperation& operation_of(const OpCost& cost, std::string operands);

  std::string label_;
  std::vector<Total> totals_;
  std::vector<RecordedOperation> operations_;
  std::map<std::string, size_t> index_, operation_index_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace ottava
