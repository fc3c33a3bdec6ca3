#include "apps/predict/measured_operations.h"

#include <fmt/core.h>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>

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
std::string product_of(std::string_view name, std::string_view precision, const ProductExtents& e) {
  return fmt::format("{}\n{}\n{} {} {}", name, precision, e.rows, e.columns, e.inner);
}

constexpr std::string_view kProduct = "gemm ", kMadeFor = "matrix products by ", kOn = " on ";

/// A product as cuda::to_string() writes it, in columns: TN is a forward, NN the gradient of its input, NT
/// that of its weight. FP8 products are all TN.
struct KeptProduct {
  std::vector<std::string> names;
  Precision precision = Precision::bf16;
  ProductExtents extents;
  double milliseconds = 0;
};
std::optional<KeptProduct> kept_product(const Decisions::Entry& entry) {
  if (!entry.name.starts_with(kProduct)) return {};
  const std::string text = entry.name.substr(kProduct.size());
  const size_t sizes = text.find(" m ");
  if (text.size() < 4 || sizes == std::string::npos) return {};
  KeptProduct out;
  ProductExtents& e = out.extents;
  if (std::sscanf(text.c_str() + sizes, " m %" SCNd64 " n %" SCNd64 " k %" SCNd64, &e.columns, &e.rows,
                  &e.inner) != 3 ||
      std::sscanf(entry.reason.c_str(), "%lf ms", &out.milliseconds) != 1 || out.milliseconds <= 0)
    return {};
  const std::string layout = text.substr(0, 2), dtype = text.substr(3, text.find(' ', 3) - 3);
  if (dtype != "f32" && dtype != "bf16") {
    out.precision = Precision::fp8;
    for (const char* variant : {"forward", "input gradient", "weight gradient"})
      out.names.push_back(fmt::format("scaled_matmul {}", variant));
    return out;
  }
  out.precision = dtype == "f32" ? Precision::fp32 : Precision::bf16;
  out.names = {layout == "TN"   ? "matmul forward"
               : layout == "NN" ? "matmul input gradient"
                                : "matmul weight gradient"};
  return out;
}

}  // namespace

bool holds_products(const Decisions& kept) {
  return std::ranges::any_of(kept.entries,
                             [](const Decisions::Entry& entry) { return kept_product(entry).has_value(); });
}

// The output is the last operand for which the inner dimension that follows from its elements is one of the
// first operand's; for the second operand this may hold too.
ProductExtents product_extents(const RecordedOperation& o) {
  const std::vector<Tensor>& tensors = o.call.tensors;
  for (size_t i = tensors.size(); i-- > 1;) {
    if (tensors[i].shape.rank() != 2) continue;
    const int64_t m = tensors[i].rows(), n = tensors[i].cols();
    const double k = o.flops / (2.0 * m * n);
    if (k == tensors[0].rows() || k == tensors[0].cols()) return {m, n, static_cast<int64_t>(k)};
  }
  return {};
}

MeasuredOperations MeasuredOperations::read(const std::vector<std::string>& paths) {
  MeasuredOperations out;
  for (const std::string& path : paths) out.add(read_file(path), path);
  return out;
}

void MeasuredOperations::add(std::string_view text, const std::string& path) {
  if (Json::parse(text, path).find("made_for")) {
    add_products(text, path);
  } else {
    add_report(text, path);
  }
  for (auto& [kind, points] : kinds_) std::ranges::sort(points, {}, &Point::size);
}

void MeasuredOperations::add_products(std::string_view text, const std::string& path) {
  const Decisions kept = parse_decisions(text, path);
  const size_t on = kept.made_for.find(kOn);
  if (!kept.made_for.starts_with(kMadeFor) || on == std::string::npos) {
    fail<FileError>(
        "calibration",
        "{} holds decisions for {}, expected {}... on a GPU: give a file from the folder training.gemm_cache",
        path, kept.made_for, kMadeFor);
  }
  set_device(kept.made_for.substr(on + kOn.size()), path);
  for (const Decisions::Entry& entry : kept.entries) {
    const std::optional<KeptProduct> product = kept_product(entry);
    if (!product) continue;
    const ProductExtents& e = product->extents;
    const double seconds = product->milliseconds * 1e-3, flops = 2.0 * e.rows * e.columns * e.inner;
    for (const std::string& name : product->names) {
      const std::string_view precision = ottava::name_of(product->precision);
      auto [known, is_new] = products_.try_emplace(product_of(name, precision, e), seconds);
      known->second = std::min(known->second, seconds);
      kinds_[kind_of(name, precision)].push_back({flops, flops / seconds});
    }
  }
  if (products_.empty()) fail<FileError>("calibration", "{} holds no time of a matrix product", path);
}

void MeasuredOperations::set_device(const std::string& device, const std::string& path) {
  if (!device_.empty() && device != device_)
    fail<FileError>("calibration",
                    "{} was measured on {}, but the file before it on {}: give files of the same device",
                    path, device, device_);
  device_ = device;
}

void MeasuredOperations::add_report(std::string_view text, const std::string& path) {
  const Json report = Json::parse(text, path);
  gemm_flops_per_second_ = report.at("gemm_flops_per_second", path).as_number("gemm_flops_per_second");
  if (const Json* f32 = report.find("f32_gemm_flops_per_second"))
    f32_gemm_flops_per_second_ = f32->as_number("f32_gemm_flops_per_second");
  copy_bytes_per_second_ = report.at("copy_bytes_per_second", path).as_number("copy_bytes_per_second");
  if (const Json* device = report.find("device")) set_device(device->as_string("device"), path);
  add_decisions(report, path);
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
    exact_[exact_of(name, precision, kernel.at("operands", path).as_string("operands"))] = time;
    if (size > 0) kinds_[kind_of(name, precision)].push_back({size, size / time});
  }
  if (exact_.empty())
    fail<FileError>("calibration",
                    "{} holds no measured operation: `ottava bench kernels CONFIG --json FILE` writes them",
                    path);
}

void MeasuredOperations::add_decisions(const Json& report, const std::string& path) {
  const Json* decided = report.find("decisions");
  if (!decided || decided->is_null()) return;
  for (const auto& [name, value] : decided->as_object("decisions")) {
    const std::string& way = value.as_string(name);
    const Decisions::Entry* before = decisions_.find(name);
    if (before && before->value != way)
      fail<FileError>("calibration",
                      "{} was measured with {} {}, but {} with {}: give files measured in the same way", path,
                      name, way, before->reason, before->value);
    if (!before) decisions_.entries.push_back({name, way, path});
  }
}

std::optional<PredictedTime> MeasuredOperations::find(const RecordedOperation& o) const {
  if (empty()) return {};
  const std::string name = name_of(o);
  const std::string_view precision = ottava::name_of(o.precision);
  if (const auto known = exact_.find(exact_of(name, precision, o.operands)); known != exact_.end())
    return PredictedTime{known->second, TimeSource::measured};
  if (const auto known = products_.find(product_of(name, precision, product_extents(o)));
      known != products_.end())
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
