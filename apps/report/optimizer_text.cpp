#include "apps/report/optimizer_text.h"

#include <fmt/core.h>

#include "core/metrics/step_line.h"
#include "core/text/counted.h"
#include "parallel/sharding/muon_owners.h"

namespace ottava {

std::string optimizer_text(const Experiment& e) {
  const std::vector<ParameterSpec> specs = parameter_table(e.shape).specs;
  const ShardCoordinates at = e.mesh.shard_coordinates(0);
  const int ranks = at.shard_size * at.tp_size;
  const std::vector<MuonBucket> buckets = muon_buckets(specs, at);
  if (buckets.empty()) return "";
  int64_t of_muon = 0, all = 0;
  size_t matrices = 0;
  for (const ParameterSpec& spec : specs) {
    all += spec.numel();
    if (spec.rule == UpdateRule::muon) of_muon += spec.numel();
  }
  for (const MuonBucket& bucket : buckets) matrices += bucket.size();
  return fmt::format(
      "Muon for {} of {} parameters{} ({}, {} of Newton-Schulz); AdamW for {}",
      counted(matrices, "matrix", "matrices"), with_commas(of_muon),
      ranks == 1 ? ""
                 : fmt::format(", each worked on by one of {} ranks, {} each way beside the work on others",
                               ranks, counted(buckets.size(), "exchange")),
      name_of(e.shape.muon.precision), counted(e.shape.muon.hyper.steps, "step"), with_commas(all - of_muon));
}

}  // namespace ottava
