#include "apps/checkpoints/float8_history.h"

#include "core/io/json.h"
#include "core/ops/host_values.h"
#include "core/text/counted.h"
#include "core/text/number.h"

namespace ottava {
namespace {

constexpr std::string_view kWhere = "fp8";
constexpr size_t kDigits = 8;

/// A history and what its columns are.
struct Named {
  std::string key;
  fp8::AmaxHistory* history;
  std::vector<std::string> names;  ///< of columns
};

std::vector<Named> histories_of(TrainingEngine& engine) {
  std::vector<Named> out;
  Float8State* state = engine.float8();
  if (!state || !state->history()) return out;
  Named operands{"operands", state->history(), {}};
  for (const std::string& name : state->options().products) {
    operands.names.push_back(name + " x");
    operands.names.push_back(name + " dy");
  }
  out.push_back(std::move(operands));
  Named weights{"weights", engine.parameters().float8()->history(), {}};
  for (const Float8WeightSpec& spec : engine.parameters().float8()->specs())
    weights.names.push_back(spec.name);
  out.push_back(std::move(weights));
  return out;
}

/// Rows that were written so far.
int64_t filled(const fp8::AmaxHistory& h) { return std::min(h.steps, h.length()); }

Json to_json(const Named& named, Stream& stream) {
  const fp8::AmaxHistory& h = *named.history;
  const std::vector<uint32_t> values = host_values<uint32_t>(stream, h.rows);
  Json rows(Json::Array{});
  const size_t columns = named.names.size();
  for (int64_t r = 0; r < filled(h); ++r) {
    std::string row;
    for (size_t c = 0; c < columns; ++c) row += fmt::format("{:08x}", values[r * columns + c]);
    rows.push(std::move(row));
  }
  return Json()
      .set("steps", h.steps)
      .set("length", h.length())
      .set("columns", Json::Array(named.names.begin(), named.names.end()))
      .set("rows", std::move(rows));
}

void check_columns(const Named& named, const Json& json, std::string_view where) {
  const Json::Array& columns = json.at("columns", where).as_array(where);
  for (size_t i = 0; i < std::max(columns.size(), named.names.size()); ++i) {
    const std::string saved = i < columns.size() ? columns[i].as_string(where) : "nothing";
    const std::string& here = i < named.names.size() ? named.names[i] : "nothing";
    if (saved == here) continue;
    fail<ConfigError>(kWhere,
                      "{} has an amax history of {} where this run has {}, because other layers run in FP8: "
                      "restore quantize.linear.float8, or add float8_history to "
                      "checkpoint.exclude_from_loading to begin a new history",
                      where, saved, here);
  }
}

void restore(const Named& named, const Json& json, std::string_view where, Stream& stream) {
  check_columns(named, json, where);
  fp8::AmaxHistory& h = *named.history;
  const int64_t length = json.at("length", where).as_integer(where),
                steps = json.at("steps", where).as_integer(where);
  if (length != h.length()) {
    fail<ConfigError>(kWhere,
                      "{} has {} of amaxes, but quantize.linear.float8.amax_history_length is {}: set it to "
                      "{}, or add float8_history to checkpoint.exclude_from_loading to begin a new history",
                      where, counted(length, "step"), h.length(), length);
  }
  const Json::Array& rows = json.at("rows", where).as_array(where);
  const size_t columns = named.names.size();
  if (steps < 0 || std::ssize(rows) != std::min(steps, length)) {
    fail<FileError>(kWhere, "{} has {} of amaxes after {}, expected {}", where, counted(rows.size(), "row"),
                    counted(steps, "step"), std::min(steps, length));
  }
  std::vector<uint32_t> values(h.rows.numel());
  for (size_t r = 0; r < rows.size(); ++r) {
    const std::string_view row = rows[r].as_string(where);
    if (row.size() != kDigits * columns) {
      fail<FileError>(kWhere, "{}: row {} has {} digits, expected {}", where, r, row.size(),
                      kDigits * columns);
    }
    for (size_t c = 0; c < columns; ++c) {
      const std::optional<uint32_t> bits = parse_number<uint32_t>(row.substr(c * kDigits, kDigits), 16);
      if (!bits) fail<FileError>(kWhere, "{}: row {} is no row of hexadecimal numbers", where, r);
      values[r * columns + c] = *bits;
    }
  }
  h.steps = steps;
  copy_from_host(stream, values.data(), h.rows);
  stream.synchronize();
}

}  // namespace

std::string float8_history_json(TrainingEngine& engine, Stream& stream) {
  const std::vector<Named> histories = histories_of(engine);
  if (histories.empty()) return {};
  Json json;
  json.set("recipe", "delayed").set("loss_scale", engine.float8()->history_loss_scale());
  for (const Named& named : histories) json.set(named.key, to_json(named, stream));
  return json.dump(1) + "\n";
}

void restore_float8_history(std::string_view text, std::string_view where, TrainingEngine& engine,
                            Stream& stream) {
  const std::vector<Named> histories = histories_of(engine);
  if (histories.empty()) {
    fail<ConfigError>(
        kWhere,
        "{} belongs to recipe delayed, which this run does not use: set quantize.linear.float8.recipe_name: "
        "delayed, or add float8_history to checkpoint.exclude_from_loading to ignore it",
        where);
  }
  const Json json = Json::parse(text, where);
  for (const Named& named : histories) restore(named, json.at(named.key, where), where, stream);
  // Files written before this was kept: then the loss scale is the one restored beside the history.
  const Json* loss_scale = json.find("loss_scale");
  engine.float8()->restore_loss_scale(loss_scale ? loss_scale->as_number(where) : 0);
}

}  // namespace ottava
