#include "apps/report_page/decimate.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ottava {

std::vector<std::pair<size_t, size_t>> buckets_of(size_t lines, size_t most) {
  const size_t count = std::min(lines, most);
  std::vector<std::pair<size_t, size_t>> buckets;
  for (size_t b = 0; b < count; ++b) buckets.emplace_back(lines * b / count, lines * (b + 1) / count);
  return buckets;
}

Points decimate(const Column& column, const std::vector<std::pair<size_t, size_t>>& buckets) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  Points out;
  bool is_whole = true, has_gaps = false;
  for (const auto& [begin, end] : buckets) {
    is_whole &= end - begin == 1;
    double last = kNaN, least = kNaN, most = kNaN;
    bool is_gap = false;
    for (size_t i = begin; i < end; ++i) {
      is_gap |= std::isinf(column[i]);
      if (!std::isfinite(column[i])) continue;
      last = column[i];
      least = std::fmin(least, last);
      most = std::fmax(most, last);
    }
    out.last.push_back(last);
    out.least.push_back(least);
    out.most.push_back(most);
    out.gaps.push_back(is_gap && std::isnan(last));
    has_gaps |= out.gaps.back();
  }
  if (is_whole) out.least.clear(), out.most.clear();
  if (!has_gaps) out.gaps.clear();
  return out;
}

}  // namespace ottava
