#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "parallel/calls/comm_stats.h"

namespace ottava {

/// Ranks first, first + stride, ...: `count` of them.
struct RankRun {
  int first = 0, count = 1, stride = 1;
  bool operator==(const RankRun&) const = default;
};
std::vector<RankRun> runs_of(const std::vector<int>& ascending_ranks);

/// A call of a communicator, or a group of calls made at once, as its transport enters it.
struct EnteredCall {
  Collective collective = Collective::barrier;
  std::string axis, label;
  std::string work = {};  ///< of a pipeline, what the rank began last: "micro-batch 3 of stage 1"
  int64_t elements = 0;   ///< of the whole vector; ranks that disagree about it stop
  int64_t calls = 1;
  int64_t collectives = 1;  ///< how many of them all ranks of the communicator make: no sends and receives
  uint32_t group = 0;       ///< the communicator's: RankState::add_group
  /// The ranks that it takes: the other ends of sends and receives, otherwise all of the communicator.
  std::vector<RankRun> ranks = {};
  int64_t sequence = 0;  ///< set by RankState: the calls this rank has entered, on all communicators
  /// Set by RankState: of the communicator's collectives, how many this rank has entered with these.
  int64_t place = 0;
};

/// The messages between a rank and some others, as many with each of these.
struct PeerMessages {
  RankRun peers;
  int64_t sent = 0, received = 0;  ///< to and from each; those sent may still be under way
  bool is_awaited = false;         ///< the rank has waited for another one from each, for a while
  bool operator==(const PeerMessages&) const = default;
};

/// Label of the first call on what a transport for GPUs has connected, which shows whether data arrive at
/// all.
inline constexpr const char* kConnecting = "connecting";

/// Where a rank is in its sequence of calls.
struct ProgressRecord {
  enum class State : uint8_t { idle, inside, done, silent, closed, failed };
  int rank = 0;
  State state = State::idle;
  bool was_inside = false;  ///< for a rank that is gone: whether it was in the call or past it
  int64_t step = 0;
  EnteredCall call;  ///< of those under way the one that began first, otherwise the last to end
  /// By group, the calls entered that all its ranks make, in the same order. A rank that has entered fewer
  /// than another keeps that one waiting. Numbers of sends and receives say nothing of the kind.
  std::map<uint32_t, int64_t> collectives = {};
  /// In answers to a roll call, and where messages are counted: not over NCCL.
  std::vector<PeerMessages> messages = {};
};

/// "in all_gather 'layers.2' (axis dp_shard, call 42, step 12)", of a pipeline "(..., step 12, micro-batch 3
/// of stage 1)", "after ...", "before its first call", "gone, last seen in ...", "not answering, last seen
/// after ...".
std::string describe(const ProgressRecord& record);
/// "all_reduce 'layers.0' (axis world, step 4)".
std::string call_text(const ProgressRecord& record);
/// A clause that names the ranks that keep the others waiting: those that are gone, else those that disagree
/// about a call, else those that are in none and for which others wait, else the connections on which
/// messages are missing, else the call that all its ranks have entered and in which some still are. `records`
/// are those of all ranks, by rank.
std::string blame(const std::vector<ProgressRecord>& records);

/// The ranks that wait in calls for others that are elsewhere, and a clause that names these and where they
/// are. Empty if no rank keeps others waiting, as where those in a call have all come to it.
struct Waiting {
  std::vector<int> ranks;
  std::string text;
};
Waiting who_waits(const std::vector<ProgressRecord>& records);

}  // namespace ottava
