#include "apps/report/memory_use.h"

#include "core/held_memory.h"
#include "core/memory/arena.h"
#include "tests/support/devices.h"
#include "tests/support/tiny_training.h"

using namespace ottava;
using namespace ottava::test;

namespace {

constexpr double kGib = 1 << 30;

// 3 KiB, of which 2 KiB are in use at one time.
MemoryPlan loose_plan() {
  MemoryPlan plan;
  plan.phases.push_back({.name = "train", .allocations = {}, .bytes = 2048, .lower_bound = 1024});
  plan.persistent_bytes = 1024;
  return plan;
}

}  // namespace

TEST_CASE("what buffers hold is counted on each device, now and at most") {
  for (Device device : devices()) {
    const HeldMemory before = held_memory(device);
    const auto bytes = static_cast<size_t>(before.most - before.now) + 4096;  // more than ever before
    {
      Buffer first(device, bytes);
      Buffer second = std::move(first);
      first = Buffer(device, 4096);
      CHECK(held_memory(device).now == before.now + static_cast<int64_t>(bytes) + 4096);
      first = std::move(second);
    }
    CHECK(held_memory(device).now == before.now);
    CHECK(held_memory(device).most == before.now + static_cast<int64_t>(bytes) + 4096);
  }
}

TEST_CASE("reserved is what is held, active what is in use of it at one time") {
  for (Device device : devices()) {
    const Arena arena(loose_plan(), device);
    const MemoryMaxima m = memory_maxima(device, loose_plan());
    CHECK(m.reserved.gib * kGib == Approx(static_cast<double>(held_memory(device).most)));
    CHECK((m.reserved.gib - m.active.gib) * kGib == Approx(1024));
    CHECK(m.reserved.percent > m.active.percent);
    CHECK((m.shown.gib == m.reserved.gib) == (device.type == DeviceType::cuda));
    CHECK(m.shown.gib > 0);
  }
}

TEST_CASE("a run logs the most that it held and the most that was in use") {
  const TinyTraining tiny;
  for (Device device : devices()) {
    const std::string run = to_string(device);
    TinyTraining::Run training = tiny.start_on(device, run);
    training->run();
    const MemoryPlan& plan = training->plan().memory;
    const double active = logged(tiny / run, "memory/max_active(GiB)").back() * kGib,
                 reserved = logged(tiny / run, "memory/max_reserved(GiB)").back() * kGib;
    CHECK(reserved == Approx(static_cast<double>(held_memory(device).most)));
    CHECK(reserved >= static_cast<double>(plan.total_bytes()));
    CHECK(active <= reserved);
    // Not what was measured before the first step, which takes tens of MiB.
    if (device.type == DeviceType::cpu)
      CHECK(reserved < static_cast<double>(plan.total_bytes() + (int64_t{1} << 20)));
    CHECK(reserved - active ==
          Approx(static_cast<double>(plan.total_bytes() - plan.persistent_bytes - plan.phases[0].lower_bound))
              .margin(1));
  }
}
