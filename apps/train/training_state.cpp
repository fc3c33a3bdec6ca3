#include "apps/train/training_state.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/counted.h"
#include "core/io/json.h"

namespace ottava {

std::string to_json(const TrainingState& s) {
  Json json;
  json.set("step", s.step);
  json.set("schedule_step", s.schedule_step);
  json.set("optimizer_step", s.optimizer_step);
  json.set("data_position", s.data_position);
  json.set("tokens_seen", s.tokens_seen);
  json.set("skipped_steps", s.skipped_steps);
  json.set("consecutive_skips", s.consecutive_skips);
  if (s.loss_scale) {
    json.set("loss_scale", s.loss_scale->scale);
    json.set("loss_scale_good_steps", s.loss_scale->good_steps);
  }
  if (!s.spikes.values.empty()) {
    json.set("skipped_spikes", s.skipped_spikes);
    json.set("spike_window_steps", s.spikes.known);
    Json values{Json::Array{}};
    for (float v : s.spikes.values) values.push(static_cast<double>(v));
    json.set("spike_window", std::move(values));
  }
  json.set("data_fingerprint", fmt::format("{:016x}", s.data_fingerprint));
  if (!s.mixture.empty()) json.set("mixture", s.mixture);
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
  s.step = count("step");
  s.schedule_step = count("schedule_step");
  s.optimizer_step = count("optimizer_step");
  s.data_position = count("data_position");
  s.tokens_seen = count("tokens_seen");
  s.skipped_steps = count("skipped_steps");
  s.consecutive_skips = count("consecutive_skips");
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
  if (const Json* scale = json.find("loss_scale")) {
    s.loss_scale = {.scale = scale->as_number(fmt::format("{}: loss_scale", where)),
                    .good_steps = count("loss_scale_good_steps")};
  }
  const std::string& hex =
      json.at("data_fingerprint", where).as_string(fmt::format("{}: data_fingerprint", where));
  auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), s.data_fingerprint, 16);
  if (error != std::errc{} || end != hex.data() + hex.size()) {
    fail<FileError>("checkpoint", "{}: data_fingerprint is '{}', expected 16 hexadecimal digits", where, hex);
  }
  if (const Json* mixture = json.find("mixture"))
    s.mixture = mixture->as_string(fmt::format("{}: mixture", where));
  return s;
}

}  // namespace ottava
