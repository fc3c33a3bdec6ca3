#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/recorded_call.h"

namespace ottava {

/// The arithmetic that a matrix or attention operation runs in; it decides which peak the operation is
/// measured against.
enum class Precision { fp32, bf16, fp8 };
std::string_view name_of(Precision precision);

/// What one call of an operation costs: the floating-point operations that are computed (of causal attention,
/// only the visible part) and the bytes that must cross memory at least once.
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
  RecordedCall call;            ///< the first call; empty where it cannot be made again
};

/// Collective calls that are carried out together: a single one, or those of a group.
struct RecordedTransfer {
  struct Call {
    std::string_view collective;  ///< a literal: "all_gather"
    std::string label;
    int64_t payload_bytes = 0, sent_bytes = 0;  ///< as CommStats counts them
  };
  std::string axis;
  int ranks = 1;
  int stride = 1;  ///< between neighbouring members, in ranks of the world
  std::vector<Call> calls;
  int64_t sent_bytes() const;
  int64_t payload_bytes() const;
};

/// One request of the host. A wait holds back everything requested after it.
struct RecordedEvent {
  enum class Kind : uint8_t { operation, issue, wait };
  Kind kind = Kind::operation;
  int32_t label = 0;  ///< index into RecordedOrder::labels: the caller
  int32_t index = 0;  ///< into CostRecorder::operations(); for issue and wait into RecordedOrder::transfers
};
/// Everything that a step asks for, in order.
struct RecordedOrder {
  std::vector<RecordedEvent> events;
  std::vector<RecordedTransfer> transfers;
  std::vector<std::string> labels{""};
  std::vector<size_t> parts;  ///< where in events each begins: micro-batches, then the update
};

/// Records what a step asks for, in order, and sums costs per (label, op, precision). Labels name the caller
/// ("attention.wqkv", of all blocks together) and nest by Scope.
class CostRecorder {
 public:
  struct Total {
    std::string label;
    std::string op;
    Precision precision;
    int64_t calls = 0;
    double flops = 0, bytes = 0;
  };

  void record(const OpCost& cost) { add(cost, {}); }
  /// Also records the call op(stream, args...), so that it can be made again.
  template <class... Parameters>
  void record(const OpCost& cost, void (*op)(Stream&, Parameters...),
              const std::decay_t<Parameters>&... args) {
    RecordedOperation& operation = add(cost, recorded::operands_text(args...));
    if (operation.calls == 1) operation.call = recorded::make_call(op, args...);
  }
  /// Records that a transfer was started. Returns the number that wait() takes.
  int32_t issue(RecordedTransfer transfer);
  void wait(int32_t transfer);
  /// What follows is the next part of the step: a micro-batch, or the update.
  void begin_part() { order_.parts.push_back(order_.events.size()); }
  /// Sums, in the order in which each was first recorded.
  std::vector<Total> totals() const;
  /// The distinct operations, in the order in which each was first recorded.
  const std::vector<RecordedOperation>& operations() const { return operations_; }
  const RecordedOrder& order() const { return order_; }
  double flops(Precision precision) const;
  double bytes() const;
  /// A library on the target asks for a scratchpad of so many bytes; the largest becomes a planned workspace.
  void need_workspace(int64_t bytes);
  int64_t workspace_bytes() const { return workspace_bytes_; }
  void clear() { *this = {}; }

  /// Adds `label` to what is recorded while it lives.
  class Scope {
   public:
    Scope(CostRecorder* recorder, std::string label);
    ~Scope();
    Scope(const Scope&) = delete;

   private:
    CostRecorder* recorder_;
    int32_t previous_ = 0;
  };

 private:
  RecordedOperation& add(const OpCost& cost, std::string operands);
  int32_t label_index(const std::string& label);

  int32_t label_ = 0;
  std::vector<Total> totals_;
  std::vector<RecordedOperation> operations_;
  RecordedOrder order_;
  std::map<std::string, int32_t, std::less<>> label_index_{{"", 0}};
  std::map<std::tuple<int32_t, std::string_view, Precision>, size_t> index_;
  std::map<std::tuple<std::string, std::string_view, std::string_view, Precision>, size_t> operation_index_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace ottava
