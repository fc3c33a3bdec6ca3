#include "apps/data/resumed_data.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/text/counted.h"
#include "core/text/listed.h"

namespace ottava {

namespace {

using Versions = std::map<std::string, std::string>;

/// The sources of a mixture whose files have other versions now.
std::string changed_sources(const Versions& before, const Versions& now) {
  std::string out;
  for (const auto& [name, version] : before) {
    const auto found = now.find(name);
    if (name.empty() || found == now.end() || found->second == version) continue;
    add_item(out, found->second.starts_with("whole ") ? name : name + " (by their modification times)");
  }
  return out;
}

}  // namespace

void note_data(TrainingState& state, const data::MixedLoader& data) {
  state.mixture = data.order_text(state.data_position);
  state.data_fingerprint = data.fingerprint(state.data_position);
}

void note_files(TrainingState& state, const data::MixedLoader& data) {
  state.data_versions = data.versions(state.data_position);
}

std::vector<std::string> changes_of_files(TrainingState& state, const data::MixedLoader& data) {
  std::vector<std::string> out;
  const Versions before = std::exchange(state.data_versions, data.versions(state.data_position));
  if (state.data_fingerprint != data.fingerprint(state.data_position)) {
    if (std::string changed = changed_sources(before, state.data_versions); !changed.empty())
      out.push_back(fmt::format("of the sources, the files of {} are not those of the checkpoint", changed));
    return out;
  }
  for (const auto& [name, version] : before) {
    const auto now = state.data_versions.find(name);
    if (now == state.data_versions.end() || now->second == version) continue;
    const std::string what =
        name.empty() ? "the training data" : fmt::format("the training data of {}", name);
    if (now->second.starts_with("whole ")) {
      out.push_back(
          fmt::format("{} differs from that of the checkpoint in a few places: its files have the same "
                      "sizes, but not the same bytes",
                      what));
    } else {
      out.push_back(fmt::format(
          "the files of {} have other modification times than those of the checkpoint, as copies "
          "have. Their sizes are the same, and so are the beginning, middle and end of each; with "
          "so much data, the rest is not compared",
          what));
    }
  }
  return out;
}

void check_data_unchanged(TrainingState& state, const data::MixedLoader& data, const TrainingConfig& config) {
  const std::string mixture = data.order_text(state.data_position);
  if (!state.mixture.empty() && state.mixture != mixture) {
    const bool has_weights = std::ranges::any_of(
        config.mixture, [](const MixtureSourceConfig& source) { return source.weight.has_value(); });
    if (!config.mixture.empty() && !has_weights) {
      fail<ConfigError>("training.mixture",
                        "the weights that follow from repeat and the size of the sources differ from those "
                        "of the checkpoint: {} there, {} here (first sample: share of 65536). The data or "
                        "repeat has changed, or another version of ottava divided it differently: restore "
                        "it, or give each source the weight that it had there and set training.steps",
                        state.mixture, mixture);
    }
    fail<ConfigError>("training.mixture",
                      "the checkpoint was trained with other weights than those of this configuration: {} "
                      "there, {} here (first sample: share of 65536): restore them, and use "
                      "training.mixture_stages to change them from a later step on",
                      state.mixture, mixture.empty() ? "no mixture" : mixture);
  }
  const uint64_t now = data.fingerprint(state.data_position);
  if (state.data_fingerprint != 0 && state.data_fingerprint != now) {
    log::warning(
        "the training data, tokenizer or seq_len differ from those of the checkpoint, or an earlier version "
        "made other documents of them: it goes on at sample {} of them as they are now, which is not where "
        "it stopped",
        state.data_position);
  }
  note_data(state, data);
}

int64_t samples_left_out(const Experiment& experiment) {
  return experiment.config.checkpoint.advance_data_steps * experiment.global_batch;
}

void leave_out_data(TrainingState& state, const data::MixedLoader& data, const Experiment& experiment) {
  const int64_t samples = samples_left_out(experiment);
  if (samples == 0) return;
  log::info("The data of {} is skipped: samples {} to {} (checkpoint.advance_data_steps)",
            counted(experiment.config.checkpoint.advance_data_steps, "step"), state.data_position,
            state.data_position + samples - 1);
  state.data_position += samples;
  note_data(state, data);
}

}  // namespace ottava
