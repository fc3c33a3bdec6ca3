#include "apps/train/launch_session.h"

#include <cstdlib>
#include <string>

#include "core/log.h"
#include "tests/support/captured_output.h"
#include "tests/support/devices.h"
#include "tests/support/tiny_training.h"
#include "tests/support/variable.h"

// What a session of one rank leaves in the environment for NCCL, which reads it when its ranks meet.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

/// NCCL's variables that a session sets, given back in the end.
struct NcclVariables {
  Variable algorithm{"NCCL_ALGO", nullptr}, protocol{"NCCL_PROTO", nullptr},
      connect{"NCCL_RUNTIME_CONNECT", nullptr}, blocking{"NCCL_COMM_BLOCKING", nullptr};
};

struct SeenInSession {
  std::string algorithm, protocol, log;
};

std::string variable_or_none(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "none";
}

SeenInSession seen_in_session(Device device, const char* deterministic) {
  const TinyTraining tiny;
  const Config config =
      tiny.config("run", {"--training.device", device.is_gpu() ? "cuda" : "cpu", "--debug.deterministic",
                          deterministic, "--training.threads", "1"});
  const CapturedOutput output;
  log::set_level(log::Level::info);
  SeenInSession seen;
  CHECK(run_session(config, [&](Session&) {
          seen.algorithm = variable_or_none("NCCL_ALGO");
          seen.protocol = variable_or_none("NCCL_PROTO");
        }) == 0);
  log::set_level(log::Level::warning);
  seen.log = output.text();
  return seen;
}

}  // namespace

TEST_CASE("debug.deterministic holds NCCL to one algorithm and one protocol, and without it NCCL chooses") {
  for (const Device device : devices()) {
    INFO(to_string(device));
    const NcclVariables variables;
    const SeenInSession free = seen_in_session(device, "false");
    CHECK(free.algorithm == "none");
    CHECK(free.protocol == "none");
    CHECK_THAT(free.log, !Contains("debug.deterministic"));
    const SeenInSession held = seen_in_session(device, "true");
    CHECK(held.algorithm == "Ring");
    CHECK(held.protocol == "Simple");
    if (device.is_gpu()) {
      CHECK_THAT(held.log, Contains("debug.deterministic holds NCCL to NCCL_ALGO=Ring\n") &&
                               Contains("debug.deterministic holds NCCL to NCCL_PROTO=Simple\n"));
    } else {
      CHECK_THAT(
          held.log,
          Contains("debug.deterministic has no effect: it fixes NCCL's algorithm, but the device is cpu"));
    }
  }
}

TEST_CASE("debug.deterministic leaves what the environment says of NCCL, and says so") {
  for (const Device device : devices()) {
    INFO(to_string(device));
    const NcclVariables variables;
    const Variable tree("NCCL_ALGO", "Tree");
    const SeenInSession held = seen_in_session(device, "true");
    CHECK(held.algorithm == "Tree");
    CHECK(held.protocol == "Simple");
    if (!device.is_gpu()) continue;
    CHECK_THAT(held.log, Contains("debug.deterministic holds NCCL to NCCL_ALGO=Tree, which the environment "
                                  "says, instead of Ring\n") &&
                             Contains("debug.deterministic holds NCCL to NCCL_PROTO=Simple\n"));
  }
}
