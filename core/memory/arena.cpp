#include "core/memory/arena.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace ottava {

const Tensor& Allocation::tensor() const {
  static const Tensor kNone;
  return node_ ? node_->tensor : kNone;
}

Allocation::Node::~Node() { arena->release(index); }

Arena::Arena(MemoryPlan plan, Device device)
    : plan_(std::move(plan)), device_(device), block_(device, plan_.total_bytes()) {}

Tensor Arena::place(const PlannedAllocation& planned, std::string_view name, MemoryCategory category,
                    DType dtype, Shape shape, int64_t base, std::string_view where) const {
  Tensor tensor{nullptr, dtype, shape};
  if (planned.name != name || planned.bytes != tensor.bytes() || planned.category != category) {
    fail("arena", "{} asks for {} ({} bytes), the plan recorded {} ({} bytes) at this point", where, name,
         tensor.bytes(), planned.name, planned.bytes);
  }
  tensor.data = static_cast<char*>(block_.data()) + base + planned.offset;
  return tensor;
}

Tensor Arena::persistent(std::string_view name, DType dtype, Shape shape, MemoryCategory category) {
  if (phase_ >= 0) fail("arena", "persistent memory for {} is asked for within a phase", name);
  if (!is_recording()) {
    if (next_persistent_ >= plan_.persistent.size()) fail("arena", "{} was not planned", name);
    return place(plan_.persistent[next_persistent_++], name, category, dtype, shape, 0, "set-up");
  }
  if (!plan_.phases.empty())
    fail("arena", "persistent memory for {} is asked for after phase {}", name, plan_.phases.back().name);
  Tensor tensor{nullptr, dtype, shape};
  PlannedAllocation planned{
      std::string(name),     category, tensor.bytes(), 0, std::numeric_limits<int64_t>::max(),
      plan_.persistent_bytes};
  plan_.persistent_bytes += aligned(planned.bytes);
  plan_.persistent.push_back(std::move(planned));
  return tensor;
}

MemoryPlan::Phase& Arena::current(std::string_view what) {
  if (phase_ < 0) fail("arena", "{} is asked for outside a phase", what);
  return plan_.phases[phase_];
}

Allocation Arena::allocate(std::string_view name, DType dtype, Shape shape, MemoryCategory category) {
  MemoryPlan::Phase& phase = current(name);
  size_t index;
  Tensor tensor{nullptr, dtype, shape};
  if (is_recording()) {
    index = phase.allocations.size();
    phase.allocations.push_back(
        {std::string(name), category, tensor.bytes(), clock_++, std::numeric_limits<int64_t>::max(), 0});
  } else {
    if (next_ >= phase.allocations.size()) fail("arena", "{} was not planned in phase {}", name, phase.name);
    index = next_++;
    tensor =
        place(phase.allocations[index], name, category, dtype, shape, plan_.persistent_bytes, phase.name);
  }
  Allocation result;
  result.node_.reset(new Allocation::Node{this, index, tensor});
  return result;
}

void Arena::release(size_t index) {
  if (is_recording() && phase_ >= 0) plan_.phases[phase_].allocations[index].end = clock_++;
}

Arena::Phase::Phase(Arena& arena, std::string_view name) : arena_(arena) {
  auto& phases = arena.plan_.phases;
  auto it = std::ranges::find(phases, name, &MemoryPlan::Phase::name);
  if (arena.phase_ >= 0) fail("arena", "phase {} starts within another", name);
  if (arena.is_recording()) {
    if (it != phases.end()) fail("arena", "phase {} is recorded twice", name);
    it = phases.insert(phases.end(), {std::string(name), {}, 0, 0});
  } else if (it == phases.end()) {
    fail("arena", "phase {} was not planned", name);
  }
  arena.phase_ = static_cast<int>(it - phases.begin());
  arena.next_ = 0;
  arena.clock_ = 0;
}

Arena::Phase::~Phase() { arena_.phase_ = -1; }

MemoryPlan Arena::plan() const {
  MemoryPlan plan = plan_;
  for (MemoryPlan::Phase& phase : plan.phases) {
    phase.bytes = pack(phase.allocations);
    phase.lower_bound = most_alive(phase.allocations);
  }
  return plan;
}

}  // namespace ottava
