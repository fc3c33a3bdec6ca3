#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/buffer.h"
#include "core/memory/plan.h"
#include "core/tensor.h"

namespace ottava {

class Arena;

/// A tensor that lives until the last copy of this handle is gone or released.
class Allocation {
 public:
  Allocation() = default;

  const Tensor& tensor() const;
  operator const Tensor&() const { return tensor(); }
  explicit operator bool() const { return node_ != nullptr; }
  /// Gives this handle up; once the last one is gone, later allocations may use the bytes.
  void release() { node_.reset(); }

 private:
  friend class Arena;
  struct Node {
    Arena* arena;
    size_t index;
    int64_t pass;
    Tensor tensor;
    ~Node();
  };
  std::shared_ptr<const Node> node_;
};

/// All memory of a rank. A recording arena hands out tensors without data while a step runs on `meta` and
/// packs what it saw into a plan; a replaying arena allocates the plan's one block and hands out the same
/// sequence of tensors with data. The sequence is checked: a step that asks for anything but what was
/// recorded is an error; the arena never grows. So is one that holds what the plan recorded as released, or
/// the reverse: its bytes may be another's. The next call of allocate() throws then, before it gives them
/// away.
///
/// Lifetimes are counted in host order. Callers that work on another stream keep two rules: such work first
/// waits for everything enqueued on the compute stream so far, and the bytes it uses are released only after
/// the compute stream has waited for it.
class Arena {
 public:
  Arena() = default;  ///< recording
  /// Allocates the block on `device`. Throws MemoryError when it cannot be had.
  Arena(MemoryPlan plan, Device device);
  Arena(const Arena&) = delete;

  /// Memory for the life of the arena; recorded only before the first phase. Filled with zeros on the host.
  /// Throws MemoryError, as allocate() does, while recording what is more than 2^61 bytes together.
  Tensor persistent(std::string_view name, DType dtype, Shape shape,
                    MemoryCategory category = MemoryCategory::data);
  /// Memory within the current phase, of which there must be one.
  Allocation allocate(std::string_view name, DType dtype, Shape shape, MemoryCategory category);

  /// A phase is one complete pass: nothing allocated in it survives it, or the next phase does not start.
  /// Recording a phase name again is an error; replaying it starts its sequence again.
  class Phase {
   public:
    Phase(Arena& arena, std::string_view name);
    ~Phase();
    Phase(const Phase&) = delete;

   private:
    Arena& arena_;
  };

  /// What was recorded.
  MemoryPlan plan(Packing packing = Packing::full) const;
  bool is_recording() const { return !device_; }
  /// The whole block as u8. Not while recording.
  Tensor block() const { return {const_cast<void*>(block_.data()), DType::u8, {block_bytes()}}; }
  int64_t block_bytes() const { return static_cast<int64_t>(block_.bytes()); }

 private:
  friend class Allocation;
  void release(const Allocation::Node& node);
  void hold_bytes(std::string_view name, const Tensor& tensor);
  void check_lives(const MemoryPlan::Phase& phase, size_t index) const;
  Tensor place(const PlannedAllocation& planned, std::string_view name, MemoryCategory category, DType dtype,
               Shape shape, int64_t base, std::string_view where) const;
  MemoryPlan::Phase& current(std::string_view what);

  MemoryPlan plan_;
  std::optional<Device> device_;
  Buffer block_;
  size_t next_persistent_ = 0;
  int phase_ = -1;
  int64_t pass_ = 0;                           // phases begun so far
  size_t next_ = 0;                            // replaying: the next allocation of the phase
  int64_t clock_ = 0;                          // allocations and releases so far in the phase
  int64_t alive_ = 0;                          // allocations of all phases that somebody holds
  int64_t held_bytes_ = 0;                     // recording: persistent and in the phase
  std::vector<bool> is_held_;                  // replaying: allocations of the phase so far
  const PlannedAllocation* astray_ = nullptr;  // replaying: the first that was released at another time
};

}  // namespace ottava
