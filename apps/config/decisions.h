#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"

namespace ottava {

/// What a run settled by measuring or by looking at free memory, where its configuration says "auto". Kept in
/// the run's folder and in every checkpoint (`decisions.json`), so that a resumed run computes what it
/// computed before.
struct Decisions {
  struct Entry {
    std::string name;    ///< key of the configuration, "parallelism.fsdp_reduce_every_microbatch"
    std::string value;   ///< as the configuration would say it
    std::string reason;  ///< for people
    bool operator==(const Entry&) const = default;
  };
  /// The layout, batch and device for which they were made. Any other needs its own.
  std::string made_for;
  std::vector<Entry> entries;

  const Entry* find(std::string_view name) const;
  /// Hash of what is decided, without the reasons.
  uint64_t hash() const;
  bool operator==(const Decisions&) const = default;
};

/// The text of decisions.json.
std::string to_json(const Decisions& decisions);
/// Inverse of to_json(). Throws FileError naming `where` for anything that to_json() does not write.
Decisions parse_decisions(std::string_view text, std::string_view where);

/// Logs what was decided, now or (`before`) by the run that is resumed.
void log_decision(const Decisions::Entry& entry, bool before = false);

/// Rank 0's decisions, on every rank. All ranks of `control` make the call.
Decisions of_first_rank(const Decisions& mine, Communicator& control);
/// All ranks' decisions, on every rank: rank 0's, then what only others have decided, each as the first of
/// them has it. All ranks of `control` make the call.
Decisions of_all_ranks(const Decisions& mine, Communicator& control);

}  // namespace ottava
