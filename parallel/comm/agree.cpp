#include "parallel/comm/agree.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include "core/io/system_failure.h"
#include "core/text/counted.h"
#include "core/text/error_text.h"
#include "parallel/comm/gather.h"

namespace ottava {

namespace {

/// A kind of error that travels between ranks.
struct ErrorKind {
  bool (*is)(const std::exception& error);
  void (*raise)(const std::string& message);
};

template <class Caught, class Thrown = Caught>
constexpr ErrorKind kind() {
  return {[](const std::exception& error) { return dynamic_cast<const Caught*>(&error) != nullptr; },
          [](const std::string& message) { throw Thrown(message); }};
}

// The standard library's error, where its code says what one of ours says.
template <bool (*is_of_kind)(int code), class Thrown>
constexpr ErrorKind kind_by_code() {
  return {[](const std::exception& error) {
            const auto* e = dynamic_cast<const std::filesystem::filesystem_error*>(&error);
            return e != nullptr && is_of_kind(e->code().value());
          },
          kind<Thrown>().raise};
}

constexpr ErrorKind kKinds[] = {kind<ShapeError>(),
                                kind<ConfigError>(),
                                kind<IoError>(),
                                kind_by_code<is_of_system, IoError>(),
                                kind_by_code<is_of_full_disk, FullDisk>(),
                                kind<FullDisk>(),
                                kind_by_code<is_of_access, NoAccess>(),
                                kind<NoAccess>(),
                                kind_by_code<is_of_missing, Missing>(),
                                kind<Missing>(),
                                kind<FileError>(),
                                kind<std::filesystem::filesystem_error, FileError>(),
                                kind<DataError>(),
                                kind<DeviceError>(),
                                kind<MemoryError>(),
                                kind<NumericsError>()};

// Empty, or a letter for the kind of error (past the table's for any other) and its message.
std::string outcome_of(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    const auto found = std::ranges::find_if(kKinds, [&](const ErrorKind& k) { return k.is(error); });
    return static_cast<char>('A' + (found - kKinds)) + error_text(error);
  }
}

}  // namespace

void meet_before_refusing(Communicator& ranks) noexcept {
  try {
    Stream stream = Stream::cpu();
    ranks.barrier(stream, "refusal");
  } catch (const std::exception&) {
    // Another rank has left already, but this one knows the sentence anyway.
  }
}

void reduce_on_host(Communicator& ranks, const Tensor& values, std::string_view label, ReduceOp op) {
  if (ranks.size() == 1) return;
  Stream stream = Stream::cpu();
  ranks.all_reduce(stream, {.send = values, .op = op, .label = label}).wait(stream);
}

void require_equal_everywhere(Communicator& ranks, std::string_view what, uint64_t hash) {
  const std::vector<int64_t> all = gather_number(ranks, static_cast<int64_t>(hash), what);
  std::map<int64_t, std::pair<int, int>> seen;  // hash -> first rank, how many
  for (size_t r = 0; r < all.size(); ++r) {
    auto [entry, is_new] = seen.try_emplace(all[r], static_cast<int>(r), 0);
    ++entry->second.second;
  }
  if (seen.size() == 1) return;
  meet_before_refusing(ranks);
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    fail<ConfigError>("ranks",
                      "{} differs between ranks: rank 0 has {:016x} (on {}), rank {} has {:016x} ({} "
                      "kinds in all): start all ranks with the same files and the same program",
                      what, static_cast<uint64_t>(all[0]), counted(seen[all[0]].second, "rank"), r,
                      static_cast<uint64_t>(all[r]), seen.size());
  }
}

std::string first_complaint(Communicator& ranks, std::string_view complaint, std::string_view label) {
  std::vector<std::string> complaints = gather_text(ranks, complaint, label);
  for (size_t r = 0; r < complaints.size(); ++r) {
    if (complaints[r].empty()) continue;
    meet_before_refusing(ranks);
    return fmt::format("rank {} cannot continue: {}", ranks.world_ranks()[r], complaints[r]);
  }
  return "";
}

void fail_together(Communicator& ranks, std::string_view where, const std::function<void()>& work) {
  if (ranks.size() == 1) return work();
  const std::vector<std::string> outcomes = gather_text(ranks, outcome_of(work), where);
  const bool is_of_all = std::ranges::count(outcomes, outcomes[0]) == std::ssize(outcomes);
  for (size_t r = 0; r < outcomes.size(); ++r) {
    if (outcomes[r].empty()) continue;
    meet_before_refusing(ranks);
    std::string message = outcomes[r].substr(1);
    if (!is_of_all) message = fmt::format("[{}] rank {}: {}", where, ranks.world_ranks()[r], message);
    const size_t index = outcomes[r][0] - 'A';
    if (index < std::size(kKinds)) kKinds[index].raise(message);
    throw Error(message);
  }
}

}  // namespace ottava
