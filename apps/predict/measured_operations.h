#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/decide/decisions.h"
#include "apps/predict/predicted_time.h"
#include "core/cost.h"

namespace ottava {

class Json;

/// out [rows, columns] of a product over `inner`; zeros where the call's operands were not kept.
struct ProductExtents {
  int64_t rows = 0, columns = 0, inner = 0;
};
ProductExtents product_extents(const RecordedOperation& product);

/// Whether these, of training.gemm_cache, have the time of a product.
bool holds_products(const Decisions& kept);

/// What operations took on a device: reports of `ottava bench kernels --json`, and matrix products that runs
/// measured to choose their algorithms (apps/decide/gemm_cache.h).
class MeasuredOperations {
 public:
  /// Throws FileError for a file that is neither.
  static MeasuredOperations read(const std::vector<std::string>& paths);
  void add(std::string_view text, const std::string& path);

  /// Seconds of a call: as measured for these operands, for a product for these extents, else from the rate
  /// of operations of its name and precision, linear in the logarithm of its size (FLOPs, or bytes where
  /// there are none) and constant beyond those that were measured. Nothing where none was.
  std::optional<PredictedTime> find(const RecordedOperation& operation) const;
  bool empty() const { return size() == 0; }
  double gemm_flops_per_second() const { return gemm_flops_per_second_; }
  double copy_bytes_per_second() const { return copy_bytes_per_second_; }
  size_t size() const { return exact_.size() + products_.size(); }
  /// What was decided where operations were measured, whose times are those of that way.
  const Decisions& decisions() const { return decisions_; }
  /// The GPU that products were measured on, as its driver calls it; empty: none were.
  const std::string& gpu() const { return gpu_; }

 private:
  void add_report(std::string_view text, const std::string& path);
  void add_products(std::string_view text, const std::string& path);
  void add_decisions(const Json& report, const std::string& path);

  struct Point {
    double size, rate;  ///< FLOPs or bytes; the same per second
  };
  std::map<std::string, double> exact_, products_;
  std::map<std::string, std::vector<Point>> kinds_;  ///< ascending sizes
  double gemm_flops_per_second_ = 0, copy_bytes_per_second_ = 0;
  Decisions decisions_;
  std::string gpu_;
};

}  // namespace ottava
