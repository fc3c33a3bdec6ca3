#include "apps/commands/plan_json.h"

#include <fmt/ranges.h>

#include <string_view>
#include <utility>

#include "core/text/gib.h"

namespace ottava {
namespace {

Json json_of(const StepTime& t) {
  Json classes, axes;
  for (const auto& [name, part] : t.classes) classes.set(name, part.seconds);
  for (const auto& [name, part] : t.axes)
    axes.set(name, Json().set("seconds", part.seconds).set("exposed", part.exposed));
  return Json()
      .set("median", t.seconds)
      .set("low", t.low())
      .set("high", t.high())
      .set("compute", t.compute)
      .set("transfers", t.transfers)
      .set("exposed", t.exposed)
      .set("idle_share", t.idle_share)
      .set("classes", std::move(classes))
      .set("axes", std::move(axes))
      .set("sources", Json()
                          .set("measured", t.by_source[0])
                          .set("interpolated", t.by_source[1])
                          .set("table", t.by_source[2]));
}

Json json_of(const RecordedLayout& l, const std::optional<MemoryLimit>& limit, std::string_view reason) {
  Json row, keys, decisions{Json::Object{}}, flops;
  for (const auto& [key, value] : keys_of(l.layout)) keys.set(key, value);
  for (const Decisions::Entry& entry : l.decisions) decisions.set(entry.name, entry.value);
  for (Precision precision : {Precision::bf16, Precision::fp8, Precision::fp32})
    flops.set(name_of(precision), l.plan.flops(precision));
  row.set("keys", std::move(keys))
      .set("decisions", std::move(decisions))
      .set("memory_gib", l.gib())
      .set("nccl_gib", gib(l.nccl.bytes()))
      .set("snapshot_gib", gib(l.snapshot))
      .set("persistent_gib", gib(l.plan.memory.persistent_bytes))
      .set("fullest_rank", l.plan.rank);
  if (limit) row.set("fits", l.gib_with_nccl() <= limit->gib);
  const CommStats& traffic = l.plan.traffic;
  row.set("flops", std::move(flops))
      .set("traffic", Json().set("calls", traffic.calls()).set("sent_bytes", traffic.sent_bytes()));
  if (l.time) row.set("time", json_of(*l.time));
  row.set("reason", reason);
  return row;
}

}  // namespace

Json plan_json(const std::vector<RecordedLayout>& layouts, const std::vector<std::string>& reasons,
               const std::optional<MemoryLimit>& limit, const Machine* machine, const MachineChoice& choice,
               const Experiment& e) {
  Json report, rows{Json::Array{}};
  for (size_t i = 0; i < layouts.size(); ++i)
    rows.push(json_of(layouts[i], limit, i < reasons.size() ? reasons[i] : ""));
  report.set("schema", "ottava plan 1").set("device", machine ? machine->device.id : "");
  report.set("network", machine ? machine->network.id : "")
      .set("calibration", fmt::format("{}", fmt::join(choice.calibration, ", ")));
  report.set("ranks", e.mesh.world_size()).set("tokens_per_step", e.tokens_per_step());
  report.set("limit_gib", limit ? Json(limit->gib) : Json()).set("layouts", std::move(rows));
  return report;
}

}  // namespace ottava
