#include "apps/report_page/float8_map.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <tuple>

#include "apps/report_page/decimate.h"

namespace ottava {
namespace {

using Buckets = std::vector<std::pair<size_t, size_t>>;
constexpr uint8_t kNotLogged = 255;

struct Row {
  std::string layer, role;
};

uint8_t fraction_code(double f) {
  if (f <= 0) return 0;
  return static_cast<uint8_t>(1 + std::clamp(std::lround((std::log10(f) + 6) / 6 * 253), 0L, 253L));
}

// The worst of each bucket, as a byte.
void append(std::string& cells, const Column* column, const Buckets& buckets,
            const std::function<uint8_t(double)>& code, const std::function<double(double)>& badness) {
  for (const auto& [begin, end] : buckets) {
    double worst = 0;
    bool is_logged = false;
    for (size_t i = begin; column && i < end; ++i) {
      const double v = (*column)[i];
      if (!std::isfinite(v)) continue;
      if (!is_logged || badness(v) > badness(worst)) worst = v;
      is_logged = true;
    }
    cells += static_cast<char>(is_logged ? code(worst) : kNotLogged);
  }
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < count ? static_cast<uint8_t>(bytes[i + k]) : 0U);
    for (size_t k = 0; k < 4; ++k) out += k <= count ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

// Operands of one role together, and "layers.10.attention.wqkv" after "layers.9...", as the model has them.
auto order_of(const Row& row) {
  int64_t number = -1;
  if (row.layer.starts_with("layers.")) number = std::atoll(row.layer.c_str() + 7);
  const int role = row.role == "x" ? 0 : row.role == "w" ? 1 : 2;
  return std::tuple(role, number < 0, number, row.layer);
}

std::vector<Row> rows_of(const RunHistory& run) {
  std::vector<Row> rows;
  for (const auto& [name, column] : run.columns) {
    constexpr std::string_view kPrefix = "fp8/", kSuffix = "/underflow";
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix) || name.starts_with("fp8/worst/")) continue;
    const std::string operand = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
    const size_t slash = operand.rfind('/');
    if (slash != std::string::npos) rows.push_back({operand.substr(0, slash), operand.substr(slash + 1)});
  }
  std::ranges::sort(rows, {}, order_of);
  return rows;
}

Json alert_of(const RunHistory& run) {
  Json out{Json::Object{}};
  for (const char* kind : {"underflow", "gradient_underflow", "saturation"}) {
    const auto found = run.config.find(std::string("quantize.linear.float8.alert_") + kind);
    if (found == run.config.end()) continue;
    char* end = nullptr;
    const double value = std::strtod(found->second.c_str(), &end);
    if (end != found->second.c_str() && value > 0) out.set(kind, value);
  }
  return out;
}

}  // namespace

Json float8_map(const RunHistory& run) {
  const std::vector<Row> rows = rows_of(run);
  if (rows.empty()) return {};
  // A bucket of steps that were all logged without FP8 (validation, other settings) has empty cells.
  constexpr size_t kColumns = 400;
  const Buckets buckets = buckets_of(run.steps.size(), kColumns);
  std::string underflow, saturation, drift;
  Json names{Json::Array{}}, steps{Json::Array{}};
  for (const auto& [begin, end] : buckets) steps.push(run.steps[end - 1]);
  for (const Row& row : rows) {
    names.push(Json(Json::Array{Json(row.layer), Json(row.role)}));
    auto column = [&](const char* kind) {
      return run.column("fp8/" + row.layer + "/" + row.role + "/" + kind);
    };
    auto itself = [](double v) { return v; };
    append(underflow, column("underflow"), buckets, fraction_code, itself);
    append(saturation, column("saturation"), buckets, fraction_code, itself);
    const Column* scale = column("scale");
    double first = 0;
    for (size_t i = 0; scale && i < scale->size() && !(first > 0); ++i)
      first = std::isfinite((*scale)[i]) ? (*scale)[i] : 0;
    auto octaves = [first](double v) { return first > 0 && v > 0 ? std::log2(v / first) : 0; };
    append(
        drift, scale, buckets,
        [&](double v) {
          return static_cast<uint8_t>(std::clamp(127 + std::lround(8 * octaves(v)), 0L, 254L));
        },
        [&](double v) { return std::abs(octaves(v)); });
  }
  Json out;
  out.set("steps", std::move(steps)).set("rows", std::move(names)).set("underflow", base64(underflow));
  return out.set("saturation", base64(saturation)).set("drift", base64(drift)).set("alert", alert_of(run));
}

}  // namespace ottava
