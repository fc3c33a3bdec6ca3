#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/json.h"

namespace ottava {

/// One rank's part of a timeline as JSON for Perfetto and chrome://tracing, with the names that tools for
/// PyTorch's traces look for. Files of several ranks have one clock and one process for each rank, so that
/// their events may stand in one file.
class ChromeTrace {
 public:
  struct Rank {
    int rank = 0, world_size = 1;
    std::string name;     ///< "rank 3, node0, dp_shard 3"
    std::string backend;  ///< "tcp", "nccl", ...
  };
  /// `origin_ns` is where the timeline begins, on this rank's clock.
  ChromeTrace(Rank rank, int64_t origin_ns);

  /// Tracks stand in the order of their numbers.
  void track(int number, std::string_view name);
  struct Slice {
    int track = 0;
    std::string_view name, category;
    int64_t begin_ns = 0, end_ns = 0;  ///< on this rank's clock
  };
  /// Slices of a track nest or are apart.
  void slice(const Slice& slice, const Json& args = {});
  struct Point {
    int track = 0;
    int64_t at_ns = 0;
  };
  /// An arrow from the slice around `from` to the slice around `to`; `id` is that of no other arrow of the
  /// rank.
  void arrow(int64_t id, Point from, Point to);
  /// A member of the file's outermost object.
  void about(std::string name, Json value);

  size_t bytes() const { return events_.size(); }
  /// The whole file.
  std::string text() const;

 private:
  void begin(char phase, std::string_view name, Point at);
  void metadata(std::string_view name, int track, const Json& args);

  Rank rank_;
  int64_t origin_ns_;
  std::string events_;
  Json about_;
};

/// Files of several ranks, of one timeline, as one: what the first says of itself, and the events of all.
std::string merged_traces(const std::vector<std::string>& texts);

}  // namespace ottava
