#include "core/memory/arena.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/text/counted.h"

namespace ottava {
namespace {

// What is packed around gaps, twice of it in the worst case, still fits 64 bits.
constexpr double kMostBytes = 0x1p61;

}  // namespace

const Tensor& Allocation::tensor() const {
  static const Tensor kNone;
  return node_ ? node_->tensor : kNone;
}

Allocation::Node::~Node() { arena->release(*this); }

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

// In float64: the product of the extents may itself not fit 64 bits.
void Arena::hold_bytes(std::string_view name, const Tensor& tensor) {
  double bytes = size_of(tensor.dtype);
  for (int axis = 0; axis < tensor.shape.rank(); ++axis) bytes *= static_cast<double>(tensor.shape[axis]);
  if (static_cast<double>(held_bytes_) + bytes > kMostBytes) {
    fail<MemoryError>("arena",
                      "with {} ({}) a rank would hold more than 2^61 bytes, the most that can be planned: "
                      "make the model, the batch or the sequences smaller, or divide them among more ranks",
                      name, describe(tensor));
  }
  held_bytes_ += aligned(tensor.bytes());
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
  hold_bytes(name, tensor);
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

// What the next allocation may overwrite is what the plan recorded as released before it.
void Arena::check_lives(const MemoryPlan::Phase& phase, size_t index) const {
  const PlannedAllocation& next = phase.allocations[index];
  if (astray_) {
    fail("arena",
         "{} was released at another time than the plan recorded in phase {}, before {} is asked for",
         astray_->name, phase.name, next.name);
  }
  if (clock_ == next.begin) return;
  size_t late = 0;
  while (late < index && !(is_held_[late] && phase.allocations[late].end < next.begin)) ++late;
  fail("arena", "{} asks for {} while {} is held, which the plan recorded as released before", phase.name,
       next.name, phase.allocations[late].name);
}

Allocation Arena::allocate(std::string_view name, DType dtype, Shape shape, MemoryCategory category) {
  MemoryPlan::Phase& phase = current(name);
  size_t index;
  Tensor tensor{nullptr, dtype, shape};
  if (is_recording()) {
    hold_bytes(name, tensor);
    index = phase.allocations.size();
    phase.allocations.push_back(
        {std::string(name), category, tensor.bytes(), clock_, std::numeric_limits<int64_t>::max(), 0});
  } else {
    if (next_ >= phase.allocations.size()) fail("arena", "{} was not planned in phase {}", name, phase.name);
    index = next_++;
    tensor =
        place(phase.allocations[index], name, category, dtype, shape, plan_.persistent_bytes, phase.name);
    check_lives(phase, index);
    is_held_.push_back(true);
  }
  Allocation result;
  result.node_.reset(new Allocation::Node{this, index, pass_, tensor});
  ++clock_;
  ++alive_;
  return result;
}

void Arena::release(const Allocation::Node& node) {
  --alive_;
  if (phase_ < 0 || node.pass != pass_) return;
  std::vector<PlannedAllocation>& all = plan_.phases[phase_].allocations;
  PlannedAllocation& planned = all[node.index];
  if (is_recording()) {
    planned.end = clock_;
    held_bytes_ -= aligned(planned.bytes);
  } else {
    is_held_[node.index] = false;
    // Between two allocations, the order of releases changes nothing.
    const bool is_late = planned.end < all[next_ - 1].begin,
               is_early = next_ < all.size() && planned.end > all[next_].begin;
    if ((is_late || is_early) && !astray_) astray_ = &planned;
  }
  ++clock_;
}

Arena::Phase::Phase(Arena& arena, std::string_view name) : arena_(arena) {
  auto& phases = arena.plan_.phases;
  auto it = std::ranges::find(phases, name, &MemoryPlan::Phase::name);
  if (arena.phase_ >= 0) fail("arena", "phase {} starts within another", name);
  if (arena.alive_ > 0)
    fail("arena", "phase {} starts with {} of an earlier phase not released", name,
         counted(arena.alive_, "allocation"));
  if (arena.is_recording()) {
    if (it != phases.end()) fail("arena", "phase {} is recorded twice", name);
    it = phases.insert(phases.end(), {std::string(name), {}, 0, 0});
  } else if (it == phases.end()) {
    fail("arena", "phase {} was not planned", name);
  }
  arena.phase_ = static_cast<int>(it - phases.begin());
  ++arena.pass_;
  arena.next_ = 0;
  arena.clock_ = 0;
  arena.is_held_.clear();
  arena.astray_ = nullptr;
}

Arena::Phase::~Phase() { arena_.phase_ = -1; }

MemoryPlan Arena::plan(Packing packing) const {
  MemoryPlan plan = plan_;
  for (MemoryPlan::Phase& phase : plan.phases) {
    phase.lower_bound = most_alive(phase.allocations);
    phase.bytes = packing == Packing::full ? pack(phase.allocations) : phase.lower_bound;
  }
  return plan;
}

}  // namespace ottava
