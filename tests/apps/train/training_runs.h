#pragma once

#include <optional>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"

// Whole runs of one process on a small text: Trainer with everything it owns.
namespace ottava::test {

using Overrides = TinyTraining::Overrides;

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Runs to the end; where `from` is given, that is the step of the checkpoint with which it must begin.
inline Everything finish(TinyTraining& tiny, const std::string& run, const Overrides& overrides,
                         std::optional<int64_t> from = {}) {
  TinyTraining::Run r = tiny.start(run, overrides);
  if (from) CHECK(r->state().step == *from);
  CHECK(r->run() == Trainer::End::completed);
  return everything_of(*r.trainer);
}

inline float* master(Trainer& trainer, int parameter) {
  return trainer.engine().parameters().shard(parameter).master.as<float>();
}

inline const Overrides kSaving = words(
    "--checkpoint.enable true --checkpoint.interval 3 --checkpoint.keep_latest_k 0 "
    "--checkpoint.last_save_model_only false");

}  // namespace ottava::test
