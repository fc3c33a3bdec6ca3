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
  size_t matrices = 0;
  for (const MuonBucket& bucket : buckets) matrices += bucket.size();
  std::map<UpdateRule, int64_t> elements = elements_by_rule(specs);
  std::string text = fmt::format(
      "Muon for {} of {} parameters{} ({}, {} of Newton-Schulz)", counted(matrices, "matrix", "matrices"),
      with_commas(elements[UpdateRule::muon]),
      ranks == 1 ? ""
                 : fmt::format(", each worked on by one of {} ranks, {} each way beside the work on others",
                               ranks, counted(buckets.size(), "exchange")),
      name_of(e.shape.muon.precision), counted(e.shape.muon.hyper.steps, "step"));
  elements.erase(UpdateRule::muon);
  for (const auto& [rule, count] : elements)
    text += fmt::format("; {} for {}", traits_of(rule).name, with_commas(count));
  return text;
}

}  // namespace ottava
