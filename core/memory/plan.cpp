#include "core/memory/plan.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace ottava {
namespace {

struct Peak {
  int64_t bytes = 0, time = 0;
};

Peak peak_of(const std::vector<PlannedAllocation>& allocations) {
  std::vector<std::pair<int64_t, int64_t>> changes;  // time, bytes
  for (const PlannedAllocation& a : allocations) {
    changes.emplace_back(a.begin, aligned(a.bytes));
    changes.emplace_back(a.end, -aligned(a.bytes));
  }
  std::ranges::sort(changes);  // a release sorts before an allocation at the same time
  Peak peak;
  int64_t alive = 0;
  for (auto [time, bytes] : changes) {
    alive += bytes;
    if (alive > peak.bytes) peak = {alive, time};
  }
  return peak;
}

const MemoryPlan::Phase* largest_phase(const MemoryPlan& plan) {
  auto it = std::ranges::max_element(plan.phases, {}, &MemoryPlan::Phase::bytes);
  return it == plan.phases.end() ? nullptr : &*it;
}

std::vector<PlannedAllocation> alive_at_peak(const MemoryPlan& plan) {
  std::vector<PlannedAllocation> alive = plan.persistent;
  if (const MemoryPlan::Phase* phase = largest_phase(plan)) {
    int64_t time = peak_of(phase->allocations).time;
    for (const PlannedAllocation& a : phase->allocations) {
      if (a.begin <= time && time < a.end) alive.push_back(a);
    }
  }
  return alive;
}

}  // namespace

std::string_view name_of(MemoryCategory category) {
  constexpr std::array<std::string_view, 9> kNames = {"parameters", "compute copies", "gradients",
                                                      "optimizer",  "unsharded",      "activations",
                                                      "scratch",    "workspace",      "data"};
  return kNames[static_cast<size_t>(category)];
}

int64_t most_alive(const std::vector<PlannedAllocation>& allocations) { return peak_of(allocations).bytes; }

int64_t MemoryPlan::total_bytes() const {
  const Phase* phase = largest_phase(*this);
  return persistent_bytes + (phase ? phase->bytes : 0);
}

void MemoryPlan::resize_persistent(std::string_view name, int64_t bytes) {
  const auto found = std::ranges::find(persistent, name, &PlannedAllocation::name);
  if (found == persistent.end()) fail("memory plan", "there is no persistent allocation '{}'", name);
  found->bytes = bytes;
  persistent_bytes = 0;
  for (PlannedAllocation& a : persistent) {
    a.offset = persistent_bytes;
    persistent_bytes += aligned(a.bytes);
  }
}

std::vector<MemoryPlan::Row> MemoryPlan::by_category() const {
  std::vector<Row> rows;
  for (const PlannedAllocation& a : alive_at_peak(*this)) {
    auto it = std::ranges::find(rows, a.category, &Row::category);
    if (it == rows.end()) it = rows.insert(rows.end(), {a.category, 0});
    it->bytes += aligned(a.bytes);
  }
  std::ranges::sort(rows, {}, &Row::category);
  return rows;
}

std::string MemoryPlan::Item::text() const { return count == 1 ? name : fmt::format("{} {} x", name, count); }

std::vector<MemoryPlan::Item> MemoryPlan::largest(int n) const {
  std::vector<PlannedAllocation> alive = alive_at_peak(*this);
  std::ranges::stable_sort(alive, std::greater(), &PlannedAllocation::bytes);
  std::vector<Item> items;
  for (const PlannedAllocation& a : alive) {
    const auto same = std::ranges::find_if(
        items, [&](const Item& item) { return item.name == a.name && item.bytes == a.bytes; });
    if (same != items.end())
      ++same->count;
    else if (std::ssize(items) < n)
      items.push_back({.name = a.name, .bytes = a.bytes});
  }
  return items;
}

}  // namespace ottava
