#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/round_up.h"

namespace ottava {

/// What a piece of memory is for; reports add up by category.
enum class MemoryCategory {
  parameters,  ///< FP32 master weights (shards)
  compute,     ///< their copies in the compute type or FP8
  gradients,
  optimizer,
  unsharded,    ///< gathered parameters and unreduced gradients
  activations,  ///< saved from forward to backward
  scratch,      ///< lives within one layer
  workspace,    ///< for libraries
  data,         ///< tokens, scalars, counters
};
std::string_view name_of(MemoryCategory category);

/// One allocation of a recorded run, alive in [begin, end). Times count the allocations and releases of its
/// phase; persistent ones are never released.
struct PlannedAllocation {
  std::string name;
  MemoryCategory category;
  int64_t bytes = 0;
  int64_t begin = 0, end = 0;
  int64_t offset = 0;  ///< in the block, a multiple of kMemoryAlignment
};

inline constexpr int64_t kMemoryAlignment = 256;
/// `bytes` rounded up to a multiple of kMemoryAlignment.
constexpr int64_t aligned(int64_t bytes) { return round_up(bytes, kMemoryAlignment); }

/// What a plan says of its phases: where everything lies, or only how much is alive at most, which is known
/// sooner.
enum class Packing { full, none };

/// Where everything lies in one block: persistent allocations first, then the phases (train, validate,
/// sample, ...), which never run at the same time and share the rest.
struct MemoryPlan {
  struct Phase {
    std::string name;
    std::vector<PlannedAllocation> allocations;
    int64_t bytes = 0;        ///< packed size, without the persistent part; lower_bound with Packing::none
    int64_t lower_bound = 0;  ///< most bytes alive at one time: no packing can be smaller
  };
  std::vector<PlannedAllocation> persistent;
  int64_t persistent_bytes = 0;
  std::vector<Phase> phases;

  int64_t total_bytes() const;
  /// Gives the persistent allocation of this name another size. Throws Error if there is none.
  void resize_persistent(std::string_view name, int64_t bytes);
  /// Bytes by category: all persistent ones, and of the largest phase those alive at its fullest moment.
  struct Row {
    MemoryCategory category;
    int64_t bytes;
  };
  std::vector<Row> by_category() const;
  /// Allocations of one name and size, such as those of all blocks: "name 32 x", of one: "name".
  struct Item {
    std::string name;
    int64_t bytes = 0;  ///< of each
    int64_t count = 1;
    std::string text() const;
  };
  /// The n largest alive at the fullest moment, for the message that says what to shrink.
  std::vector<Item> largest(int n) const;
};

/// Gives every allocation an offset so that no two that are alive at the same time overlap: larger ones
/// first, each at the lowest offset that is free for its whole life. Returns the packed size in bytes.
int64_t pack(std::vector<PlannedAllocation>& allocations);
/// Most bytes alive at one time.
int64_t most_alive(const std::vector<PlannedAllocation>& allocations);

}  // namespace ottava
