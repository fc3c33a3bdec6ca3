#include "apps/predict/machine.h"
#include "core/optim/update_rule.h"
#include "tests/apps/predict/small_plan.h"
#include "tests/support/catch.h"

using namespace ottava;
using namespace ottava::test;

TEST_CASE("whatever a step's update does is counted as the optimizer's, with any optimizer") {
  for (const UpdateRuleTraits& rule : kUpdateRules) {
    const Planned p({"--optimizer.name", std::string(rule.name), "--training.skip_spikes.sigma", "6"}, 2);
    const StepPlan plan =
        record_first_rank(p.planned.experiment.shape, p.planned.device, p.planned.experiment.mesh);
    int updates = 0;
    for (const RecordedEvent& event : plan.order.events) {
      if (event.kind != RecordedEvent::Kind::operation) continue;
      const std::string& label = plan.order.labels[static_cast<size_t>(event.label)];
      const RecordedOperation& o = plan.operations[static_cast<size_t>(event.index)];
      if ((label != "optimizer" && label != "muon") || o.op == "copy" || o.op == "cast") continue;
      INFO(rule.name << ": " << o.op << " is missing in class_of()");
      CHECK(class_of(o) != "elementwise");
      updates += class_of(o) == "optimizer";
    }
    CHECK(updates > 0);
  }
}
