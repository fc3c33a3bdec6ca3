#include "apps/step/training_state.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/counted.h"
#include "core/io/json.h"
#include "core/number.h"

namespace ottava {

namespace {

/// What every checkpoint has, in the order of the file.
constexpr std::pair<const char*, int64_t TrainingState::*> kCounts[] = {
    {"step", &TrainingState::step},
    {"schedule_step", &TrainingState::schedule_step},
    {"optimizer_step", &TrainingState::optimizer_step},
    {"data_position", &TrainingState::data_position},
    {"tokens_seen", &TrainingState::tokens_seen},
    {"skipped_steps", &TrainingState::skipped_steps},
    {"consecutive_skips", &TrainingState::consecutive_skips}};

}  // namespace

std::string to_json(const TrainingState& s) {
  Json json;
  for (const auto& [name, count] : kCounts) json.set(name, s.*count);
  if (s.loss_scale) {
    json.set("loss_scale", s.loss_scale->scale).set("loss_scale_good_steps", s.loss_scale->good_steps);
  }
  if (!s.spikes.values.empty()) {
    json.set("skipped_spikes", s.skipped_spikes)
        .set("spike_window_steps", s.spikes.known)
        .set("spike_window", Json::Array(s.spikes.values.begin(), s.spikes.values.end()));
  }
  if (!s.moments_begun.empty()) {
    Json begun;
    for (const auto& [name, step] : s.moments_begun) begun.set(name, step);
    json.set("moments_begun", std::move(begun));
  }
  json.set("data_fingerprint", fmt::format("{:016x}", s.data_fingerprint));
  if (!s.data_versions.empty()) {
    Json versions;
    for (const auto& [name, version] : s.data_versions) versions.set(name, version);
    json.set("data_versions", std::move(versions));
  }
  if (!s.mixture.empty()) json.set("mixture", s.mixture);
  if (s.sequences_per_step > 0) json.set("sequences_per_step", s.sequences_per_step);
  if (s.threads > 0) json.set("threads", s.threads);
  if (!s.computes_with.empty()) json.set("computes_with", s.computes_with);
  if (!s.branch.empty()) json.set("branch", s.branch);
  return json.dump(2) + "\n";
}

TrainingState parse_training_state(std::string_view text, std::string_view where) {
  const Json json = Json::parse(text, where);
  auto count = [&](std::string_view name) {
    std::string what = fmt::format("{}: {}", where, name);
    int64_t value = json.at(name, where).as_integer(what);
    if (value < 0) fail<FileError>("checkpoint", "{} is {}, expected a count", what, value);
    return value;
  };
  TrainingState s;
  for (const auto& [name, member] : kCounts) s.*member = count(name);
  if (const Json* window = json.find("spike_window")) {
    s.skipped_spikes = count("skipped_spikes");
    s.spikes.known = count("spike_window_steps");
    const std::string what = fmt::format("{}: spike_window", where);
    for (const Json& v : window->as_array(what))
      s.spikes.values.push_back(static_cast<float>(v.as_number(what)));
    const bool is_finite =
        std::ranges::all_of(s.spikes.values, [](float value) { return std::isfinite(value); });
    if (s.spikes.values.empty() || s.spikes.values.size() % 2 != 0 || !is_finite) {
      fail<FileError>("checkpoint", "{} has {}, expected losses and as many norms, all of them finite", what,
                      counted(s.spikes.values.size(), "value"));
    }
  }
  if (const Json* begun = json.find("moments_begun")) {
    const std::string what = fmt::format("{}: moments_begun", where);
    for (const auto& [name, value] : begun->as_object(what)) {
      const int64_t step = value.as_integer(what);
      if (step < 1 || step > s.optimizer_step) {
        fail<FileError>("checkpoint", "{} is {} for '{}', expected 1 to {} (the optimizer_step)", what, step,
                        name, s.optimizer_step);
      }
      s.moments_begun[name] = step;
    }
  }
  if (const Json* scale = json.find("loss_scale")) {
    s.loss_scale = {.scale = scale->as_number(fmt::format("{}: loss_scale", where)),
                    .good_steps = count("loss_scale_good_steps")};
  }
  const std::string& hex =
      json.at("data_fingerprint", where).as_string(fmt::format("{}: data_fingerprint", where));
  const std::optional<uint64_t> fingerprint = parse_number<uint64_t>(hex, 16);
  if (!fingerprint) {
    fail<FileError>("checkpoint", "{}: data_fingerprint is '{}', expected 16 hexadecimal digits", where, hex);
  }
  s.data_fingerprint = *fingerprint;
  if (const Json* versions = json.find("data_versions")) {
    const std::string what = fmt::format("{}: data_versions", where);
    for (const auto& [name, version] : versions->as_object(what))
      s.data_versions[name] = version.as_string(what);
  }
  if (const Json* mixture = json.find("mixture"))
    s.mixture = mixture->as_string(fmt::format("{}: mixture", where));
  if (json.find("sequences_per_step")) s.sequences_per_step = count("sequences_per_step");
  if (json.find("threads")) s.threads = count("threads");
  if (const Json* with = json.find("computes_with"))
    s.computes_with = with->as_string(fmt::format("{}: computes_with", where));
  if (const Json* branch = json.find("branch"))
    s.branch = branch->as_string(fmt::format("{}: branch", where));
  return s;
}

}  // namespace ottava
