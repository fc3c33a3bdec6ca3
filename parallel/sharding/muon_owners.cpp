#include "parallel/sharding/muon_owners.h"

#include <algorithm>

namespace ottava {

double MuonMatrix::flops() const {
  const double m = rows, n = columns, k = std::min(m, n);
  return 3 * m * n * k + k * k * k;
}

std::vector<MuonBucket> muon_buckets(const std::vector<ParameterSpec>& specs, const ShardCoordinates& at) {
  const int ranks = at.shard_size * at.tp_size;
  std::vector<size_t> order;  // of the parameters, unit by unit
  for (size_t p = 0; p < specs.size(); ++p) {
    if (specs[p].rule != UpdateRule::muon || !at.holds(specs[p].unit)) continue;
    if (specs[p].is_vector)
      fail<ConfigError>("muon",
                        "{} is a vector of {}: only matrices can be orthogonalised; leave it to AdamW",
                        specs[p].name, specs[p].rows());
    order.push_back(p);
  }
  std::ranges::stable_sort(order, {}, [&](size_t p) { return specs[p].unit; });
  std::vector<MuonBucket> buckets;
  int last_unit = -1;
  for (size_t p : order) {
    const ParameterSpec& spec = specs[p];
    const bool is_full = !buckets.empty() && buckets.back().size() >= static_cast<size_t>(ranks);
    if (buckets.empty() || (is_full && spec.unit != last_unit)) buckets.emplace_back();
    last_unit = spec.unit;
    for (size_t part = 0; part < spec.parts.size(); ++part) {
      buckets.back().push_back({.parameter = static_cast<int>(p),
                                .part = static_cast<int>(part),
                                .rows = spec.parts[part].rows,
                                .columns = spec.columns});
    }
  }
  std::vector<double> load(ranks, 0.0);
  for (MuonBucket& bucket : buckets) {
    std::vector<MuonMatrix*> largest_first;
    for (MuonMatrix& matrix : bucket) largest_first.push_back(&matrix);
    std::ranges::stable_sort(largest_first, std::greater<>(), [](const MuonMatrix* m) { return m->flops(); });
    for (MuonMatrix* matrix : largest_first) {
      const auto owner = std::ranges::min_element(load);
      *owner += matrix->flops();
      matrix->owner = static_cast<int>(owner - load.begin());
    }
  }
  return buckets;
}

}  // namespace ottava
