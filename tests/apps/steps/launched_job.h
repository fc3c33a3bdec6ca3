#pragma once

#include "tests/apps/steps/small_job.h"
#include "tests/support/catch.h"
#include "tests/support/launched.h"

namespace ottava::test {

/// The job on ranks of `ottava launch`; run() expects success.
inline std::string launch(int ranks, const std::string& command) {
  return std::string(OTTAVA) + " launch -n " + std::to_string(ranks) + " --" + command;
}
inline void run(const std::string& command) {
  const Outcome o = run_command(command);
  INFO(command << "\n" << o.output);
  REQUIRE(o.exit_code == 0);
}

inline void require_near(const Curve& got, const Curve& want) {
  REQUIRE(got.size() == want.size());
  for (const auto& [step, point] : want) {
    INFO("step " << step);
    REQUIRE(got.at(step).loss == Approx(point.loss).epsilon(1e-5));
    REQUIRE(got.at(step).grad_norm == Approx(point.grad_norm).epsilon(1e-5));
  }
}

inline std::map<int64_t, double> validation_losses(const Job& job) {
  std::map<int64_t, double> losses;
  for (const Json& json : logged_lines(job.out()))
    if (const Json* loss = json.find("validation_metrics/loss"))
      losses[json.at("step", "metrics").as_integer("step")] = loss->as_number("loss");
  return losses;
}

}  // namespace ottava::test
