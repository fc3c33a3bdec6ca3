#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/checkpoint/held_runs.h"

namespace ottava::checkpoint {

/// Creates (or empties) all files of the layout, writes their headers and reserves their space, so that a
/// full disk is known before any tensor is written. One rank does this before the others write, and flushes
/// them in write_shards(). Throws FileError.
void create_files(const Layout& layout, const std::string& folder);

/// Writes the owned runs into the files at their offsets, flushes the files it touched, and returns the
/// checksums of this rank's elements, one per tensor of the layout. Waits for runs that have not arrived, and
/// converts runs whose stored type differs. Needs two pieces of at most 1 MiB beside the shards. Throws
/// FileError, and NumericsError for a weight that is not finite; setting `cancel` to true ends it early with
/// a FileError.
struct WriteShards {
  const Layout* layout = nullptr;
  std::string folder;
  std::vector<HeldRun> runs;
  bool flushes_all = false;  ///< this rank has created the files: it flushes those it does not touch, too
  /// See TrainedParameters::copy; empty for host memory.
  std::function<void(void*, const void*, size_t)> copy = {};
  const std::atomic<bool>* cancel = nullptr;
};
std::vector<uint64_t> write_shards(const WriteShards& work);

}  // namespace ottava::checkpoint
