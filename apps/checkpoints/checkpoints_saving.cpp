#include <fmt/format.h>

#include <chrono>
#include <string_view>
#include <thread>
#include <utility>

#include "apps/checkpoints/checkpoints.h"
#include "apps/checkpoints/float8_history.h"
#include "core/contains.h"
#include "core/io/attempts.h"
#include "core/log.h"

// What Checkpoints does to save.

namespace ottava {
namespace {

void pause() { std::this_thread::sleep_for(std::chrono::duration<double>(kPauseSeconds)); }

constexpr std::string_view kAgain = "is tried again",
                           kAnew = "is tried again, in a new folder if the old one is not back",
                           kLast = "the last one follows";

// Who can do what before the next save.
std::string_view way_out(const Mendable& error) {
  if (dynamic_cast<const FullDisk*>(&error))
    return "make room before the next one is due, or the run ends there";
  if (dynamic_cast<const Missing*>(&error))
    return "put its folder back before the next one is due, which makes a new folder otherwise, and ends the "
           "run if it fails too";
  return "permit it before the next one is due, or the run ends there";
}

}  // namespace

bool Checkpoints::is_due(int64_t step, bool is_last) const {
  if (!saver_) return false;
  return is_last || is_repeated_ || step % config_.interval == 0 ||
         (step == 1 && config_.enable_first_step_checkpoint);
}

checkpoint::Checkpoint Checkpoints::contents(TrainingEngine& engine, const TrainingState& state,
                                             bool model_only) const {
  checkpoint::Checkpoint out{
      .step = state.step,
      .parameters = trained_parameters(engine.parameters(), stream_, !model_only),
      .rotate_after = state.consecutive_skips > 0 ? state.step - state.consecutive_skips : -1};
  const Config& c = experiment_.config;
  if (model_only) out.export_dtype = config_.export_dtype;
  out.texts = {{"config.json", model_only ? files_.exported_config_json : files_.config_json},
               {"ottava_config.yaml", print_config(c)},
               {"decisions.json", to_json(experiment_.decisions)},
               {std::string(kStateName), to_json(state)}};
  if (std::string history = model_only ? "" : float8_history_json(engine, stream_); !history.empty()) {
    out.texts.push_back({std::string(kHistoryName), std::move(history)});
  }
  out.texts.insert(out.texts.end(), files_.others.begin(), files_.others.end());
  return out;
}

// The same on all ranks; called where `error` is caught.
void Checkpoints::take_failure(const FileError& error, std::string_view what_follows) {
  if (!first_failure_.empty()) throw;
  warn_of_failure(error, what_follows);
}

void Checkpoints::warn_of_failure(const FileError& error, std::string_view what_follows) {
  if (first_failure_.empty()) first_failure_ = error.what();
  if (group_.rank() == 0)
    log::warning("a checkpoint could not be written, and {}: {}", what_follows, error.what());
}

void Checkpoints::take_failure(const IoError& error) {
  take_failure(error, kAgain);
  is_repeated_ = true;
}

// Ending here would lose the steps since the last checkpoint for certain; whoever makes room, or permits the
// writing, before the next save keeps them. Without an end, a run could go on for days of which nothing
// stays.
void Checkpoints::take_failure(const Mendable& error) {
  take_failure(error, fmt::format("the run goes on without it: {}", way_out(error)));
}

// What failed last may be only the removal of what the first failure left.
template <class Work>
auto Checkpoints::naming_first_failure(const Work& work) const {
  const auto text = [this](const FileError& error) {
    const std::string last = error.what();
    return first_failure_.empty() || contains_text(last, first_failure_)
               ? last
               : fmt::format("{}; what failed first: {}", last, first_failure_);
  };
  try {
    return work();
  } catch (const IoError& error) {
    throw IoError(text(error));
  } catch (const FullDisk& error) {
    throw FullDisk(text(error));
  } catch (const NoAccess& error) {
    throw NoAccess(text(error));
  } catch (const Missing& error) {
    throw Missing(text(error));
  } catch (const FileError& error) {
    throw FileError(text(error));
  }
}

bool Checkpoints::save(TrainingEngine& engine, const TrainingState& state, bool is_last) {
  if (!saver_) return true;
  return naming_first_failure([&] {
    if (!finish_or_repeat(is_last)) pause();
    try {
      save_once(engine, state, is_last);
      return true;
    } catch (const IoError& error) {
      is_last ? warn_of_failure(error, kAgain) : take_failure(error);
    } catch (const Mendable& error) {
      if (!is_last) return take_failure(error), false;
      if (!dynamic_cast<const Missing*>(&error)) throw;
      warn_of_failure(error, kAnew);
    }
    pause();
    save_once(engine, state, is_last);
    return true;
  });
}

void Checkpoints::save_once(TrainingEngine& engine, const TrainingState& state, bool is_last) {
  is_repeated_ = false;
  checkpoint::Checkpoint now = contents(engine, state, is_last && config_.last_save_model_only);
  const bool beside_steps = !is_last && config_.async_mode != CheckpointConfig::Async::disabled;
  log::info("Saving the checkpoint of step {}{}", state.step, beside_steps ? " (in the background)" : "");
  if (beside_steps) return saver_->begin(now);
  try {
    saver_->save(now);
  } catch (const NumericsError&) {
    // Weights that float16 cannot represent are no reason to lose the steps; weights that are not finite are
    // refused again.
    if (now.export_dtype.value_or(DType::f32) == DType::f32) throw;
    saver_->save(contents(engine, state, false));
    log::warning(
        "the checkpoint of step {} is saved in float32, with the optimizer's state, as it cannot be exported",
        state.step);
    throw;
  }
}

std::string Checkpoints::ways_back(int64_t step) {
  return group_.of_rank_0(
      saver_ && group_.rank() == 0 ? advice_to_go_back(experiment_.config.checkpoint, folder_, step) : "");
}

void Checkpoints::reserve_snapshot(Device device) {
  if (saver_) saver_->snapshot().reserve(device, snapshot_bytes(experiment_, coordinates_));
}

const Event* Checkpoints::end_of_copies() const {
  return saver_ && saver_->in_flight() ? saver_->snapshot().end_of_copies() : nullptr;
}

void Checkpoints::poll() {
  if (!saver_ || !saver_->in_flight()) return;
  naming_first_failure([&] {
    try {
      saver_->poll();
    } catch (const IoError& error) {
      take_failure(error);
    } catch (const Mendable& error) {
      take_failure(error);
    }
  });
}

bool Checkpoints::finish_or_repeat(bool before_last) {
  try {
    finish();
    return true;
  } catch (const IoError& error) {
    before_last ? warn_of_failure(error, kLast) : take_failure(error);
  } catch (const Mendable& error) {
    before_last ? warn_of_failure(error, kLast) : take_failure(error);
  }
  return false;
}

void Checkpoints::finish() {
  if (saver_) naming_first_failure([&] { saver_->finish(); });
}

}  // namespace ottava
