#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/json.h"

namespace ottava {

/// One rank's part of a timeline as JSON for Perfetto and chrome://tracing, with the names that tools for
/// PyTorch's traces look for. Files of several ranks share one clock and give each rank a process of its own,
/// so that their events may go into one file.
class ChromeTrace {
 public:
  struct Rank {
    int rank = 0, world_size = 1;
    std::string name;     ///< "rank 3, node0, dp_shard 3"
    std::string backend;  ///< "tcp", "nccl", ...
  };
  /// `origin_ns`: the beginning of the timeline, on this rank's clock.
  ChromeTrace(Rank rank, int64_t origin_ns);

  /// Names a track. Viewers show tracks in the order of their numbers.
  void track(int number, std::string_view name);
  struct Slice {
    int track = 0;
    std::string_view name, category;
    int64_t begin_ns = 0, end_ns = 0;  ///< on this rank's clock
  };
  /// Slices of one track must nest or be disjoint.
  void slice(const Slice& slice, const Json& args = {});
  struct Point {
    int track = 0;
    int64_t at_ns = 0;
  };
  /// An arrow from the slice around `from` to the slice around `to`; `id` must be unique among the rank's
  /// arrows.
  void arrow(int64_t id, Point from, Point to);
  /// Adds a member to the file's outermost object.
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

/// A rank's file, unpacked.
struct TraceFile {
  std::string path, text;
};
/// Several ranks' files of one timeline, as text() made them, as one file: the first one's members, and the
/// events of all. Throws FileError that names the one that another program has written anew.
std::string merged_traces(const std::vector<TraceFile>& files);

}  // namespace ottava
