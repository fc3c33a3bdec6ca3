#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "core/memory/plan.h"

namespace ottava {
namespace {

/// Bytes that are taken: disjoint ranges that do not touch, ascending.
class TakenBytes {
 public:
  void add(int64_t begin, int64_t end) {
    const auto first = std::ranges::lower_bound(ranges_, begin, {}, &Range::second);
    auto last = first;
    for (; last != ranges_.end() && last->first <= end; ++last) {
      begin = std::min(begin, last->first);
      end = std::max(end, last->second);
    }
    if (first == last) {
      ranges_.insert(first, {begin, end});
    } else {
      *first = {begin, end};
      ranges_.erase(first + 1, last);
    }
  }
  using Range = std::pair<int64_t, int64_t>;
  std::span<const Range> ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

/// What is taken at which time: a segment tree over the moments at which something is allocated, the only
/// ones at which two lifetimes can begin to overlap. A node knows which bytes are taken throughout its time,
/// by allocations that are filed there, and which are taken at any moment of it. Ranges that touch are
/// merged, so that both lists stay short.
class Occupancy {
 public:
  explicit Occupancy(const std::vector<PlannedAllocation>& allocations) {
    for (const PlannedAllocation& a : allocations) moments_.push_back(a.begin);
    std::ranges::sort(moments_);
    nodes_.resize(4 * moments_.size());
  }
  int64_t lowest_free(const PlannedAllocation& a) const {
    std::vector<Ranges> ahead;  // of each node those that do not end before the offset
    collect(life_of(a), {1, 0, moments_.size()}, ahead);
    const int64_t bytes = aligned(a.bytes);
    int64_t offset = 0;
    for (bool moves = bytes > 0; moves;) {
      moves = false;
      for (Ranges& ranges : ahead) {
        while (!ranges.empty() && ranges[0].first < offset + bytes) {
          if (ranges[0].second > offset) offset = ranges[0].second, moves = true;
          ranges = ranges.subspan(1);
        }
      }
    }
    return offset;
  }
  void add(const PlannedAllocation& a) {
    if (a.bytes > 0) file(life_of(a), {1, 0, moments_.size()}, a.offset, a.offset + aligned(a.bytes));
  }

 private:
  using Ranges = std::span<const TakenBytes::Range>;
  struct Life {
    size_t begin, end;  ///< moments
  };
  struct Node {
    TakenBytes throughout, at_any_moment;
  };
  struct Place {
    size_t index, begin, end;
    size_t middle() const { return (begin + end) / 2; }
    Place lower() const { return {2 * index, begin, middle()}; }
    Place upper() const { return {2 * index + 1, middle(), end}; }
  };

  Life life_of(const PlannedAllocation& a) const {
    auto index = [&](int64_t time) -> size_t {
      return std::ranges::lower_bound(moments_, time) - moments_.begin();
    };
    return {index(a.begin), index(a.end)};
  }
  void collect(const Life& life, const Place& at, std::vector<Ranges>& out) const {
    if (life.end <= at.begin || at.end <= life.begin) return;
    const Node& node = nodes_[at.index];
    if (node.at_any_moment.ranges().empty()) return;
    if (life.begin <= at.begin && at.end <= life.end) return out.push_back(node.at_any_moment.ranges());
    if (!node.throughout.ranges().empty()) out.push_back(node.throughout.ranges());
    collect(life, at.lower(), out);
    collect(life, at.upper(), out);
  }
  void file(const Life& life, const Place& at, int64_t from, int64_t to) {
    if (life.end <= at.begin || at.end <= life.begin) return;
    Node& node = nodes_[at.index];
    node.at_any_moment.add(from, to);
    if (life.begin <= at.begin && at.end <= life.end) return node.throughout.add(from, to);
    file(life, at.lower(), from, to);
    file(life, at.upper(), from, to);
  }

  std::vector<int64_t> moments_;
  std::vector<Node> nodes_;
};

}  // namespace

int64_t pack(std::vector<PlannedAllocation>& allocations) {
  std::vector<size_t> order(allocations.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](size_t i) { return allocations[i].bytes; });
  Occupancy occupancy(allocations);
  int64_t size = 0;
  for (size_t index : order) {
    PlannedAllocation& a = allocations[index];
    a.offset = occupancy.lowest_free(a);
    occupancy.add(a);
    size = std::max(size, a.offset + aligned(a.bytes));
  }
  return size;
}

}  // namespace ottava
