#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "core/error.h"
#include "parallel/checkpoint/loader.h"
#include "parallel/checkpoint/saver.h"
#include "tests/parallel/checkpoint/tiny_model.h"
#include "tests/support/catch.h"

// Checkpoints of the tiny model: saved by the ranks of a layout, loaded by one.
namespace ottava::checkpoint {

inline Checkpoint checkpoint_of(const TinyRank& rank, int64_t step) {
  return {.step = step, .parameters = rank.parameters, .texts = {{"config.json", "{}\n"}}};
}

inline void save(const std::string& folder, const TinyLayout& layout, int64_t step, int64_t version,
                 SaveOptions options = {}) {
  options.folder = folder;
  run_ranks(layout, [&](PatientRanks& group, ShardCoordinates at) {
    TinyRank rank(tiny_model(), at);
    rank.fill(version);
    CheckpointSaver saver(options, group);
    saver.save(checkpoint_of(rank, step));
  });
}

/// Loads on one rank and returns the step, or -1.
inline int64_t load(const std::string& folder, int64_t version, int64_t load_step = -1) {
  PatientRanks group;
  TinyRank rank(tiny_model());
  auto loaded = load_newest(folder, rank.parameters, group, load_step);
  if (!loaded) return -1;
  CHECK(rank.wrong(version) == 0);
  return loaded->manifest.step;
}

/// The message of the error that f throws; empty for none and for errors of another type. Ranks are threads
/// and must not use the test's assertions.
template <class E>
std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception&) {
  }
  return "";
}
inline std::string config_error_of(const std::function<void()>& f) { return message_of<ConfigError>(f); }
inline std::string file_error_of(const std::function<void()>& f) { return message_of<FileError>(f); }

}  // namespace ottava::checkpoint
