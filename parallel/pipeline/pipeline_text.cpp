#include "parallel/pipeline/pipeline_text.h"

#include <algorithm>

#include "core/text/counted.h"
#include "core/text/listed.h"
#include "parallel/pipeline/simulated_pipeline.h"

namespace ottava {
namespace {

std::string units_text(StageUnits units, int all) {
  std::string text;
  auto add = [&](std::string_view what) { add_item(text, what); };
  if (units.begin == 0) add("embedding");
  const int first = std::max(units.begin, 1) - 1, last = std::min(units.end, all - 1) - 2;
  if (first == last) add(fmt::format("layer {}", first));
  if (first < last) add(fmt::format("layers {} to {}", first, last));
  if (units.end == all) add("head");
  return text;
}

}  // namespace

std::string describe(const PipelineLayout& p) {
  const PipelineShape& s = p.shape;
  return fmt::format("{}, {} with {} each, {}: {:.1f}% of the time idle where stages take the same time",
                     name_of(s.schedule), counted(s.ranks, "rank"), counted(s.chunks, "stage"),
                     counted(s.micro_batches, "micro-batch", "micro-batches"),
                     100 * simulate(make_schedule(s)).idle_share);
}

std::string describe_rank(const PipelineLayout& p, int rank) {
  std::string text;
  for (int chunk = 0; chunk < p.shape.chunks; ++chunk)
    add_item(text, units_text(p.units_of(rank, chunk), p.stages.back().end), " and ");
  const double most = simulate(make_schedule(p.shape)).in_flight[rank];
  return text + fmt::format("; {:.3g} micro-batch{} in flight at most", most, most == 1 ? "" : "es");
}

}  // namespace ottava
