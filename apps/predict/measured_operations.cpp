#include "apps/predict/measured_operations.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/io/file.h"
#include "core/io/json.h"

namespace ottava {
namespace {

std::string kind_of(std::string_view name, std::string_view precision) {
  return fmt::format("{}\n{}", name, precision);
}
std::string exact_of(std::string_view name, std::string_view precision, std::string_view operands) {
  return fmt::format("{}\n{}\n{}", name, precision, operands);
}
std::string name_of(const RecordedOperation& o) { return o.op + (o.variant.empty() ? "" : " " + o.variant); }

}  // namespace

MeasuredOperations MeasuredOperations::read(const std::string& path) { return parse(read_file(path), path); }

MeasuredOperations MeasuredOperations::parse(std::string_view text, const std::string& path) {
  const Json report = Json::parse(text, path);
  MeasuredOperations out;
  out.gemm_flops_per_second_ = report.at("gemm_flops_per_second", path).as_number("gemm_flops_per_second");
  out.copy_bytes_per_second_ = report.at("copy_bytes_per_second", path).as_number("copy_bytes_per_second");
  for (const Json& kernel : report.at("kernels", path).as_array("kernels")) {
    const Json* seconds = kernel.find("seconds");
    if (!seconds) continue;
    const std::string& name = kernel.at("name", path).as_string("name");
    const std::string& precision = kernel.at("precision", path).as_string("precision");
    const double flops = kernel.at("flops", path).as_number("flops"),
                 bytes = kernel.at("bytes", path).as_number("bytes"), time = seconds->as_number("seconds"),
                 size = flops > 0 ? flops : bytes;
    if (!(time > 0))
      fail<FileError>("calibration", "{}: {} took {} s, expected more than 0", path, name, time);
    out.exact_[exact_of(name, precision, kernel.at("operands", path).as_string("operands"))] = time;
    if (size > 0) out.kinds_[kind_of(name, precision)].push_back({size, size / time});
  }
  if (out.empty())
    fail<FileError>("calibration",
                    "{} holds no measured operation: `ottava bench kernels CONFIG --json FILE` writes them",
                    path);
  for (auto& [kind, points] : out.kinds_) std::ranges::sort(points, {}, &Point::size);
  return out;
}

std::optional<PredictedTime> MeasuredOperations::find(const RecordedOperation& o) const {
  if (empty()) return {};
  const std::string name = name_of(o);
  const std::string_view precision = ottava::name_of(o.precision);
  if (const auto known = exact_.find(exact_of(name, precision, o.operands)); known != exact_.end())
    return PredictedTime{known->second, TimeSource::measured};
  const auto kind = kinds_.find(kind_of(name, precision));
  const double size = o.flops > 0 ? o.flops : o.bytes;
  if (kind == kinds_.end() || size <= 0) return {};
  const std::vector<Point>& points = kind->second;
  const auto above = std::ranges::lower_bound(points, size, {}, &Point::size);
  double rate = 0;
  if (above == points.begin()) {
    rate = above->rate;
  } else if (above == points.end()) {
    rate = points.back().rate;
  } else {
    const Point& below = *(above - 1);
    const double part = std::log(size / below.size) / std::log(above->size / below.size);
    rate = below.rate + part * (above->rate - below.rate);
  }
  return PredictedTime{size / rate, TimeSource::interpolated};
}

}  // namespace ottava
