#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/config/decisions.h"
#include "apps/predict/predicted_time.h"
#include "core/cost.h"

namespace ottava {

class Json;

/// Extents of a product out [rows, columns] that contracts `inner`; zeros if the call's operands were not
/// kept.
struct ProductExtents {
  int64_t rows = 0, columns = 0, inner = 0;
};
ProductExtents product_extents(const RecordedOperation& product);

/// Whether these decisions, read from training.gemm_cache, have the time of any product.
bool holds_products(const Decisions& kept);

/// Measured times of operations on a device, from reports of `ottava bench kernels --json` and from the
/// matrix products that runs timed to choose their algorithms (apps/decide/gemm_cache.h).
class MeasuredOperations {
 public:
  /// Reads such files. Throws FileError for a file that is neither.
  static MeasuredOperations read(const std::vector<std::string>& paths);
  void add(std::string_view text, const std::string& path);

  /// Seconds of a call: as measured for these operands (for a product, these extents); else from the rate of
  /// operations of its name and precision, interpolated linearly in the logarithm of its size (FLOPs, or
  /// bytes if it has none) and constant beyond the sizes measured. Nothing if none was measured.
  std::optional<PredictedTime> find(const RecordedOperation& operation) const;
  bool empty() const { return size() == 0; }
  double gemm_flops_per_second() const { return gemm_flops_per_second_; }
  double f32_gemm_flops_per_second() const { return f32_gemm_flops_per_second_; }  ///< 0: not measured
  double copy_bytes_per_second() const { return copy_bytes_per_second_; }
  size_t size() const { return exact_.size() + products_.size(); }
  /// Decisions that were in force when operations were measured; the times hold for these.
  const Decisions& decisions() const { return decisions_; }
  /// The device on which operations were measured: a GPU by its name in the driver, or "cpu". Empty if no
  /// file says.
  const std::string& device() const { return device_; }

 private:
  void add_report(std::string_view text, const std::string& path);
  void add_products(std::string_view text, const std::string& path);
  void set_device(const std::string& device, const std::string& path);
  void add_decisions(const Json& report, const std::string& path);

  struct Point {
    double size, rate;  ///< FLOPs or bytes; the same per second
  };
  std::map<std::string, double> exact_, products_;
  std::map<std::string, std::vector<Point>> kinds_;  ///< ascending sizes
  double gemm_flops_per_second_ = 0, f32_gemm_flops_per_second_ = 0, copy_bytes_per_second_ = 0;
  Decisions decisions_;
  std::string device_;
};

}  // namespace ottava
