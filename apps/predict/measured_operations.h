#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/predict/predicted_time.h"
#include "core/cost.h"

namespace ottava {

/// What operations took on a device, as `ottava bench kernels --json` writes it.
class MeasuredOperations {
 public:
  MeasuredOperations() = default;
  /// Throws FileError for a file that is no such report.
  static MeasuredOperations read(const std::string& path);
  static MeasuredOperations parse(std::string_view text, const std::string& path);

  /// Seconds of a call: as measured for these operands, else from the rate of operations of its name and
  /// precision, linear in the logarithm of its size (FLOPs, or bytes where there are none) and constant
  /// beyond those that were measured. Nothing where none was.
  std::optional<PredictedTime> find(const RecordedOperation& operation) const;
  bool empty() const { return exact_.empty(); }
  double gemm_flops_per_second() const { return gemm_flops_per_second_; }
  double copy_bytes_per_second() const { return copy_bytes_per_second_; }
  size_t size() const { return exact_.size(); }

 private:
  struct Point {
    double size, rate;  ///< FLOPs or bytes; the same per second
  };
  std::map<std::string, double> exact_;
  std::map<std::string, std::vector<Point>> kinds_;  ///< ascending sizes
  double gemm_flops_per_second_ = 0, copy_bytes_per_second_ = 0;
};

}  // namespace ottava
