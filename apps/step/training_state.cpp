#include "apps/step/training_state.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/io/json.h"
#include "core/text/counted.h"
#include "core/text/number.h"

namespace ottava {

namespace {

/// No run counts as far; what one adds to this fits 64 bits.
constexpr int64_t kMostCounted = int64_t{1} << 62;

/// What every checkpoint has, in the order of the file.
constexpr std::pair<const char*, int64_t TrainingState::*> kCounts[] = {
    {"step", &TrainingState::step},
    {"schedule_step", &TrainingState::schedule_step},
    {"optimizer_step", &TrainingState::optimizer_step},
    {"data_position", &TrainingState::data_position},
    {"tokens_seen", &TrainingState::tokens_seen},
    {"skipped_steps", &TrainingState::skipped_steps},
    {"consecutive_skips", &TrainingState::consecutive_skips}};

/// Members of the file, by name. Errors say where they are.
class Reader {
 public:
  Reader(const Json& json, std::string_view where) : json_(json), where_(where) {}
  const Json* find(std::string_view name) const { return json_.find(name); }
  std::string place_of(std::string_view name) const { return fmt::format("{}: {}", where_, name); }
  int64_t count(std::string_view name) const {
    const int64_t value = json_.at(name, where_).as_integer(place_of(name));
    if (value < 0 || value > kMostCounted) {
      fail<FileError>("checkpoint", "{} is {}, expected a count of at most {}", place_of(name), value,
                      kMostCounted);
    }
    return value;
  }
  std::string text_or_none(std::string_view name) const {
    const Json* text = find(name);
    return text ? text->as_string(place_of(name)) : std::string();
  }

 private:
  const Json& json_;
  std::string_view where_;
};

void read_spikes(const Reader& reader, TrainingState& s) {
  const Json* window = reader.find("spike_window");
  if (!window) return;
  s.skipped_spikes = reader.count("skipped_spikes");
  s.spikes.known = reader.count("spike_window_steps");
  const std::string what = reader.place_of("spike_window");
  for (const Json& v : window->as_array(what))
    s.spikes.values.push_back(static_cast<float>(v.as_number(what)));
  const bool is_finite =
      std::ranges::all_of(s.spikes.values, [](float value) { return std::isfinite(value); });
  if (s.spikes.values.empty() || s.spikes.values.size() % 2 != 0 || !is_finite) {
    fail<FileError>("checkpoint", "{} has {}, expected losses and as many norms, all of them finite", what,
                    counted(s.spikes.values.size(), "value"));
  }
}

void read_moments_begun(const Reader& reader, TrainingState& s) {
  const Json* begun = reader.find("moments_begun");
  if (!begun) return;
  const std::string what = reader.place_of("moments_begun");
  for (const auto& [name, value] : begun->as_object(what)) {
    const int64_t step = value.as_integer(what);
    if (step < 1 || step > s.optimizer_step) {
      fail<FileError>("checkpoint", "{} is {} for '{}', expected 1 to {} (the optimizer_step)", what, step,
                      name, s.optimizer_step);
    }
    s.moments_begun[name] = step;
  }
}

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
  const Reader reader(json, where);
  TrainingState s;
  for (const auto& [name, member] : kCounts) s.*member = reader.count(name);
  read_spikes(reader, s);
  read_moments_begun(reader, s);
  if (const Json* scale = json.find("loss_scale"))
    s.loss_scale = {.scale = scale->as_number(reader.place_of("loss_scale")),
                    .good_steps = reader.count("loss_scale_good_steps")};
  const std::string& hex = json.at("data_fingerprint", where).as_string(reader.place_of("data_fingerprint"));
  const std::optional<uint64_t> fingerprint = parse_number<uint64_t>(hex, 16);
  if (!fingerprint) {
    fail<FileError>("checkpoint", "{} is '{}', expected 16 hexadecimal digits",
                    reader.place_of("data_fingerprint"), hex);
  }
  s.data_fingerprint = *fingerprint;
  if (const Json* versions = json.find("data_versions")) {
    const std::string what = reader.place_of("data_versions");
    for (const auto& [name, version] : versions->as_object(what))
      s.data_versions[name] = version.as_string(what);
  }
  if (json.find("sequences_per_step")) s.sequences_per_step = reader.count("sequences_per_step");
  if (json.find("threads")) s.threads = reader.count("threads");
  s.mixture = reader.text_or_none("mixture");
  s.computes_with = reader.text_or_none("computes_with");
  s.branch = reader.text_or_none("branch");
  return s;
}

}  // namespace ottava
