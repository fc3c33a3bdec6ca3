#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/checkpoint/held_runs.h"

namespace ottava::checkpoint {

/// Creates (or empties) all files of the layout, writes their headers and reserves their space, so that a
/// full disk is known before any tensor is written. One rank does this before the others write. Throws
/// FileError.
void create_files(const Layout& layout, const std::string& folder);

/// A host copy of what a rank owns, from which a thread writes while training goes on. The memory is kept
/// between snapshots of the same parameters.
class Snapshot {
 public:
  /// Replaces the memory of the runs by copies; runs that the rank does not own are dropped.
  std::vector<HeldRun> take(std::vector<HeldRun> runs, const TrainedParameters& parameters);
  /// Host bytes that a snapshot of these parameters takes on this rank: an item of the memory plan.
  static int64_t bytes(const TrainedParameters& parameters);

 private:
  std::vector<char> memory_;
};

/// Writes the owned runs into the files at their offsets, flushes the files it touched, and returns the
/// checksum of this rank's elements, one per tensor of the layout. Memory beside the shards: two pieces of at
/// most 1 MiB. Runs are converted where the stored type is another one. Throws FileError; `cancel` set to
/// true ends it early the same way.
struct WriteShards {
  const Layout* layout = nullptr;
  std::string folder;
  std::vector<HeldRun> runs;
  /// See TrainedParameters::copy; empty for host memory.
  std::function<void(void*, const void*, size_t)> copy = {};
  const std::atomic<bool>* cancel = nullptr;
};
std::vector<uint64_t> write_shards(const WriteShards& work);

}  // namespace ottava::checkpoint
