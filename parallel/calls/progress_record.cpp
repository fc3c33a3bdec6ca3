#include "parallel/calls/progress_record.h"

#include <algorithm>

#include <fmt/core.h>

#include "core/contains.h"
#include "core/text/counted.h"
#include "core/text/listed.h"

namespace ottava {
namespace {

using State = ProgressRecord::State;

constexpr size_t kShown = 8;

// "rank 2", "ranks 0, 1, 3"; long lists end in a count.
std::string list_of(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") +
         listed(
             ranks, [](int r) { return std::to_string(r); }, kShown);
}

// Ranks whose records pass, grouped by what they are doing, in rank order: "rank 2 is in ...; ranks 0, 3 are
// after ...".
template <class Keep>
std::string describe_groups(const std::vector<ProgressRecord>& records, Keep keep) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const ProgressRecord& record : records) {
    if (!keep(record)) continue;
    std::string what = describe(record);
    auto found = std::ranges::find(groups, what, [](const auto& group) { return group.first; });
    if (found == groups.end()) {
      groups.push_back({what, {record.rank}});
    } else {
      found->second.push_back(record.rank);
    }
  }
  std::string text;
  for (const auto& [what, ranks] : groups) {
    add_item(text, fmt::format("{} {} {}", list_of(ranks), ranks.size() == 1 ? "is" : "are", what), "; ");
  }
  return text;
}

bool is_gone(const ProgressRecord& r) {
  return r.state == State::closed || r.state == State::failed || r.state == State::silent;
}

// How many calls that all ranks of the communicator make this rank has entered.
int64_t entered(const ProgressRecord& r, uint32_t group) {
  const auto found = r.collectives.find(group);
  return found == r.collectives.end() ? 0 : found->second;
}

// The call that a rank is in: of which communicator, and which of its calls. The rank may have entered later
// ones as well.
using CallKey = std::pair<uint32_t, int64_t>;
CallKey key_of(const ProgressRecord& r) { return {r.call.group, r.call.place}; }

// A rank inside sends and receives waits for their other ends; in any other call it waits for the ranks that
// have not entered it. A rank for which others wait and that waits for none is behind, unless it is stuck: it
// is in a call that all its ranks have entered.
struct Waits {
  std::vector<bool> waiting, awaited;  ///< by rank
  bool is_last(const ProgressRecord& r) const { return awaited[r.rank] && !waiting[r.rank]; }
  bool is_stuck(const ProgressRecord& r) const { return is_last(r) && r.state == State::inside; }
  bool is_behind(const ProgressRecord& r) const { return is_last(r) && r.state != State::inside; }
};

Waits waits_of(const std::vector<ProgressRecord>& records) {
  const int64_t size = std::ssize(records);
  Waits out{std::vector<bool>(records.size()), std::vector<bool>(records.size())};
  std::map<CallKey, bool> known;  // many ranks wait in one call
  for (const ProgressRecord& r : records) {
    if (r.state != State::inside) continue;
    const CallKey key = key_of(r);
    bool waits = false;
    const bool is_pairwise = r.call.collectives == 0, is_known = !is_pairwise && known.contains(key);
    if (is_known) waits = known[key];
    for (const RankRun& run : is_known ? std::vector<RankRun>() : r.call.ranks) {
      for (int64_t i = 0, rank = run.first; i < run.count && rank < size; ++i, rank += run.stride) {
        if (rank == r.rank || (!is_pairwise && entered(records[rank], key.first) >= key.second)) continue;
        out.awaited[rank] = waits = true;
      }
    }
    if (!is_pairwise) known[key] = waits;
    out.waiting[r.rank] = waits;
  }
  return out;
}

// Whether ranks are in the same call of a communicator, by their counts, and each takes it for another one.
bool disagree(const std::vector<ProgressRecord>& records) {
  std::map<CallKey, const EnteredCall*> calls;
  return std::ranges::any_of(records, [&](const ProgressRecord& r) {
    if (r.state != State::inside || r.call.collectives == 0) return false;
    const EnteredCall& first = *calls.try_emplace(key_of(r), &r.call).first->second;
    return r.call.collective != first.collective || r.call.label != first.label ||
           r.call.elements != first.elements;
  });
}

// The ranks for which others wait and that wait for none, then these others; empty if there are none.
std::string last_text(const std::vector<ProgressRecord>& records, const Waits& waits) {
  const auto clause = [&](std::string_view what, auto keep) {
    const std::string text = describe_groups(records, keep);
    return text.empty() ? text : fmt::format("{}: {}; ", what, text);
  };
  using Record = const ProgressRecord&;
  std::string text =
      clause("behind", [&](Record r) { return waits.is_behind(r); }) +
      clause("in a call that all its ranks have entered", [&](Record r) { return waits.is_stuck(r); });
  if (text.empty()) return text;
  text +=
      clause("waiting", [&](Record r) { return waits.waiting[r.rank]; }) +
      clause("not waited for", [&](Record r) { return !waits.waiting[r.rank] && !waits.awaited[r.rank]; });
  return text.substr(0, text.size() - 2);
}

// "rank 0 -> rank 1 (7 messages sent, 6 received)" for each connection on which a message does not come that
// its receiver awaits and its sender has sent.
std::vector<std::string> broken_connections(const std::vector<ProgressRecord>& records) {
  const auto sent = [&](const ProgressRecord& from, int to) {
    for (const PeerMessages& m : from.messages) {
      const int distance = to - m.peers.first, place = distance / m.peers.stride;
      if (distance >= 0 && distance % m.peers.stride == 0 && place < m.peers.count) return m.sent;
    }
    return int64_t{0};
  };
  std::vector<std::string> found;
  for (const ProgressRecord& r : records) {
    for (const PeerMessages& m : r.messages) {
      if (r.state != State::inside || !m.is_awaited) continue;
      for (int64_t i = 0, from = m.peers.first; i < m.peers.count && from < std::ssize(records);
           ++i, from += m.peers.stride) {
        const int64_t count = sent(records[from], r.rank);
        if (count <= m.received) continue;
        found.push_back(fmt::format("rank {} -> rank {} ({} messages sent, {} received)", from, r.rank, count,
                                    m.received));
      }
    }
  }
  return found;
}

// Of a graph's calls only the end of all is seen. The first call of all shows what keeps GPUs apart.
std::string advice_on(const std::vector<ProgressRecord>& records) {
  const auto any_is_in = [&](auto of) {
    return std::ranges::any_of(
        records, [&](const ProgressRecord& r) { return r.state == State::inside && of(r.call); });
  };
  if (any_is_in([](const EnteredCall& c) { return c.collective == Collective::graph; })) {
    return "; a graph that takes longer than comm.train_timeout_seconds looks the same: if this one may, "
           "raise it, or set training.cuda_graphs to off";
  }
  if (any_is_in([](const EnteredCall& c) { return c.label == kConnecting; })) {
    return "; NCCL_DEBUG=INFO shows the paths that NCCL has chosen: if GPUs cannot reach each other's memory "
           "here, as behind an IOMMU or with ACS on PCIe switches, NCCL_P2P_DISABLE=1 does without";
  }
  return "";
}

std::string describe_sized(std::vector<ProgressRecord> records) {
  for (ProgressRecord& r : records) r.call.label += " of " + counted(r.call.elements, "element");
  return describe_groups(records, [](const ProgressRecord&) { return true; });
}

}  // namespace

std::vector<RankRun> runs_of(const std::vector<int>& ranks) {
  std::vector<RankRun> runs;
  for (int rank : ranks) {
    if (!runs.empty()) {
      RankRun& run = runs.back();
      if (run.count == 1) run.stride = rank - run.first;
      if (rank == run.first + run.count * run.stride) {
        ++run.count;
        continue;
      }
    }
    runs.push_back({.first = rank});
  }
  return runs;
}

std::string describe(const ProgressRecord& record) {
  std::string_view absence;
  if (record.state == State::closed) absence = "gone, last seen ";
  if (record.state == State::failed) absence = "stopped by an error, last seen ";
  if (record.state == State::silent) absence = "not answering, last seen ";
  const EnteredCall& call = record.call;
  if (call.sequence == 0) return fmt::format("{}before its first call", absence);
  bool inside = absence.empty() ? record.state == State::inside : record.was_inside;
  return fmt::format("{}{} {} '{}' (axis {}, call {}, step {}{}{})", absence, inside ? "in" : "after",
                     name_of(call.collective), call.label, call.axis, call.sequence, record.step,
                     call.work.empty() ? "" : ", ", call.work);
}

std::string call_text(const ProgressRecord& at) {
  return fmt::format("{} '{}' (axis {}, step {})", name_of(at.call.collective), at.call.label, at.call.axis,
                     at.step);
}

std::string blame(const std::vector<ProgressRecord>& records) {
  if (records.empty()) return "no rank has reported";
  if (std::ranges::any_of(records, is_gone)) {
    std::string gone = describe_groups(records, is_gone);
    std::string others = describe_groups(records, [](const ProgressRecord& r) { return !is_gone(r); });
    return others.empty() ? gone : fmt::format("{}; {}", gone, others);
  }
  if (disagree(records)) return "the ranks disagree about the call: " + describe_sized(records);
  const Waits waits = waits_of(records);
  const std::string last = last_text(records, waits);
  if (std::ranges::any_of(records, [&](const auto& r) { return waits.is_behind(r); })) return last;
  if (const std::vector<std::string> broken = broken_connections(records); !broken.empty()) {
    const auto same = [](const std::string& connection) { return connection; };
    return fmt::format("a connection is at fault, or its ranks disagree about the call: {}; {}",
                       listed(broken, same, kShown), describe_sized(records));
  }
  if (!last.empty()) return "no rank is behind, but data does not arrive " + last + advice_on(records);
  if (contains(waits.waiting, true)) {
    return "the ranks disagree about the call, or a connection is at fault: " + describe_sized(records);
  }
  return fmt::format("no rank is behind: all have entered the call, and its data does not arrive: {}{}",
                     describe_groups(records, [](const auto&) { return true; }), advice_on(records));
}

Waiting who_waits(const std::vector<ProgressRecord>& records) {
  const Waits waits = waits_of(records);
  Waiting out{.ranks = {}, .text = last_text(records, waits)};
  if (out.text.empty()) return out;
  for (const ProgressRecord& r : records)
    if (waits.waiting[r.rank]) out.ranks.push_back(r.rank);
  return out;
}

}  // namespace ottava
