#include "core/memory/arena.h"

#include <algorithm>
#include <random>

#include "tests/support/catch.h"

using namespace ottava;

namespace {
constexpr auto kScratch = MemoryCategory::scratch;

bool overlap(const PlannedAllocation& a, const PlannedAllocation& b) {
  bool in_time = a.begin < b.end && b.begin < a.end;
  bool in_space = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
  return in_time && in_space;
}
}  // namespace

TEST_CASE("packing never overlaps lives and stays near the lower bound") {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    std::vector<PlannedAllocation> allocations;
    for (int i = 0; i < 200; ++i) {
      auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
      int64_t begin = below(300);
      allocations.push_back({"a", kScratch, 1 + below(100000), begin, begin + 1 + below(40), 0});
    }
    int64_t size = pack(allocations);
    for (size_t i = 0; i < allocations.size(); ++i) {
      CHECK(allocations[i].offset % kMemoryAlignment == 0);
      CHECK(allocations[i].offset + allocations[i].bytes <= size);
      for (size_t j = 0; j < i; ++j) REQUIRE_FALSE(overlap(allocations[i], allocations[j]));
    }
    CHECK(size >= most_alive(allocations));
    CHECK(size <= most_alive(allocations) * 1.25);
  }
}

TEST_CASE("larger allocations are placed first, each as low as those leave room") {
  std::mt19937 random(11);
  for (const int64_t longest : {3, 40, 4000}) {
    std::vector<PlannedAllocation> allocations;
    for (int64_t i = 0; i < 300; ++i) {
      const auto bytes = static_cast<int64_t>(random() % 6) * 1000;
      const auto life = static_cast<int64_t>(random()) % longest;
      allocations.push_back({"a", kScratch, bytes, 2 * i, 2 * i + 1 + life, 0});
    }
    std::vector<PlannedAllocation> packed = allocations;
    pack(packed);
    std::vector<size_t> placed;
    for (const int64_t bytes : {5000, 4000, 3000, 2000, 1000, 0}) {
      for (size_t i = 0; i < packed.size(); ++i) {
        if (packed[i].bytes != bytes) continue;
        PlannedAllocation lower = packed[i];
        for (lower.offset = 0; lower.offset < packed[i].offset; lower.offset += kMemoryAlignment) {
          REQUIRE(std::ranges::any_of(placed, [&](size_t j) {
            PlannedAllocation other = packed[j];
            other.bytes = aligned(other.bytes);
            return overlap(lower, other);
          }));
        }
        REQUIRE(lower.offset == packed[i].offset);
        placed.push_back(i);
      }
    }
  }
}

namespace {
void step(Arena& arena, int64_t rows) {
  Arena::Phase phase(arena, "train");
  Allocation saved = arena.allocate("saved", DType::f32, {rows, 64}, MemoryCategory::activations);
  {
    Allocation a = arena.allocate("a", DType::f32, {1000}, kScratch);
    Allocation b = arena.allocate("b", DType::bf16, {1000}, kScratch);
  }
  Allocation c = arena.allocate("c", DType::f32, {1500}, kScratch);
  if (!arena.is_recording()) {
    c.tensor().as<float>()[1499] = 1;
    saved.tensor().as<float>()[0] = 2;
  }
}
}  // namespace

TEST_CASE("a recorded step replays into one block") {
  Arena recorder;
  recorder.persistent("weights", DType::f32, {100}, MemoryCategory::parameters);
  step(recorder, 10);
  MemoryPlan plan = recorder.plan();
  CHECK(plan.persistent_bytes == 512);
  REQUIRE(plan.phases.size() == 1);
  CHECK(plan.phases[0].bytes == 2560 + 6144);  // a and b are gone when c lives
  CHECK(plan.total_bytes() == 512 + 2560 + 6144);

  Arena arena(plan, {DeviceType::cpu, 0});
  Tensor weights = arena.persistent("weights", DType::f32, {100}, MemoryCategory::parameters);
  CHECK(weights.as<float>()[99] == 0);
  step(arena, 10);
  step(arena, 10);
  CHECK(arena.block_bytes() == plan.total_bytes());

  CHECK_THROWS_WITH(
      step(arena, 11),
      "[arena] train asks for saved (2816 bytes), the plan recorded saved (2560 bytes) at this point");
  CHECK_THROWS_WITH(arena.allocate("x", DType::f32, {1}, kScratch), "[arena] x is asked for outside a phase");
  CHECK_THROWS_WITH(arena.persistent("more", DType::f32, {1}, kScratch), "[arena] more was not planned");
}

TEST_CASE("persistent memory comes before the first phase") {
  Arena recorder;
  recorder.persistent("weights", DType::f32, {100}, MemoryCategory::parameters);
  const auto more = [&] { recorder.persistent("more", DType::f32, {1}, kScratch); };
  {
    Arena::Phase phase(recorder, "train");
    CHECK_THROWS_WITH(more(), "[arena] persistent memory for more is asked for within a phase");
  }
  CHECK_THROWS_WITH(more(), "[arena] persistent memory for more is asked for after phase train");
  CHECK(recorder.plan().persistent.size() == 1);
}

TEST_CASE(
    "what is held past its recorded life, or given up before, is an error before its bytes are another's") {
  enum class Releases { a, b, none, after_c };
  const auto pass = [](Arena& arena, Releases first) {
    Arena::Phase phase(arena, "train");
    Allocation a = arena.allocate("a", DType::f32, {64}, kScratch);
    Allocation b = arena.allocate("b", DType::f32, {64}, kScratch);
    if (first == Releases::a) a.release();
    if (first == Releases::b) b.release();
    Allocation c = arena.allocate("c", DType::f32, {64}, kScratch);
    if (first == Releases::after_c) a.release(), b.release();
  };
  Arena recorder;
  pass(recorder, Releases::a);
  const MemoryPlan plan = recorder.plan();
  CHECK(plan.total_bytes() == 2 * 256);  // c lies where a was
  Arena arena(plan, {DeviceType::cpu, 0});
  pass(arena, Releases::a);
  CHECK_THROWS_WITH(pass(arena, Releases::none),
                    "[arena] train asks for c while a is held, which the plan recorded as released before");
  CHECK_THROWS_WITH(pass(arena, Releases::after_c),
                    "[arena] train asks for c while a is held, which the plan recorded as released before");
  CHECK_THROWS_WITH(
      pass(arena, Releases::b),
      "[arena] b was released at another time than the plan recorded in phase train, before c is asked for");
  pass(arena, Releases::a);
}

TEST_CASE("more bytes than 64 bits can count are refused while they are recorded") {
  constexpr int64_t kMany = int64_t{1} << 30;
  Arena recorder;
  recorder.persistent("weights", DType::f32, {kMany, kMany / 4}, MemoryCategory::parameters);  // 2^60
  CHECK_THROWS_WITH(recorder.persistent("moments", DType::f32, {kMany, kMany / 2}, kScratch),
                    "[arena] with moments (f32 [1073741824, 536870912]) a rank would hold more than 2^61 "
                    "bytes, the most that can be planned: make the model, the batch or the sequences "
                    "smaller, or divide them among more ranks");
  Arena::Phase phase(recorder, "train");
  for (int pass = 0; pass < 4; ++pass)  // what was released counts no more
    recorder.allocate("saved", DType::bf16, {kMany, kMany / 4}, kScratch);
  const Allocation held = recorder.allocate("saved", DType::bf16, {kMany, kMany / 4}, kScratch);
  CHECK_THROWS_AS(recorder.allocate("more", DType::bf16, {kMany, kMany / 2}, kScratch), MemoryError);
  // The product itself is 0 modulo 2^64.
  CHECK_THROWS_AS(recorder.allocate("most", DType::bf16, {kMany, kMany, kMany}, kScratch), MemoryError);
  CHECK(recorder.plan().total_bytes() == 3 * (kMany * kMany / 2));
}

TEST_CASE("a phase is recorded once, by itself, and nothing survives it") {
  Arena recorder;
  Allocation kept;
  {
    Arena::Phase phase(recorder, "train");
    CHECK_THROWS_WITH(Arena::Phase(recorder, "validate"), "[arena] phase validate starts within another");
    kept = recorder.allocate("kept", DType::f32, {64}, kScratch);
  }
  CHECK_THROWS_WITH(Arena::Phase(recorder, "validate"),
                    "[arena] phase validate starts with 1 allocation of an earlier phase not released");
  kept.release();
  CHECK_THROWS_WITH(Arena::Phase(recorder, "train"), "[arena] phase train is recorded twice");
  Arena arena(recorder.plan(), {DeviceType::cpu, 0});
  CHECK_THROWS_WITH(Arena::Phase(arena, "validate"), "[arena] phase validate was not planned");
}

TEST_CASE("the report adds up what is alive at the fullest moment") {
  Arena recorder;
  recorder.persistent("weights", DType::f32, {64}, MemoryCategory::parameters);
  step(recorder, 10);
  auto rows = recorder.plan().by_category();
  REQUIRE(rows.size() == 3);
  CHECK(rows[0].bytes == 256);
  CHECK(rows[1].category == MemoryCategory::activations);
  CHECK(rows[1].bytes == 2560);
  CHECK(rows[2].bytes == 4096 + 2048);  // 1000 f32 and 1000 bf16 are more than 1500 f32
  CHECK(recorder.plan().largest(1)[0].name == "a");
}

TEST_CASE("among the largest, allocations of one name and size are one item") {
  Arena recorder;
  for (int i = 0; i < 3; ++i) recorder.persistent("block", DType::f32, {128}, MemoryCategory::parameters);
  recorder.persistent("block", DType::f32, {64}, MemoryCategory::parameters);
  recorder.persistent("head", DType::f32, {128}, MemoryCategory::parameters);
  std::string texts;
  for (const MemoryPlan::Item& item : recorder.plan().largest(3))
    texts += item.text() + " " + std::to_string(item.bytes) + "; ";
  CHECK(texts == "block 3 x 512; head 512; block 256; ");
  CHECK(recorder.plan().largest(1).size() == 1);
}

TEST_CASE("a plan that is not packed says how much is alive") {
  Arena recorder;
  recorder.persistent("weights", DType::f32, {64}, MemoryCategory::parameters);
  {
    Arena::Phase phase(recorder, "train");
    Allocation first = recorder.allocate("first", DType::f32, {256}, kScratch);
    Allocation between = recorder.allocate("between", DType::f32, {128}, kScratch);
    first = {};
    Allocation last = recorder.allocate("last", DType::f32, {320}, kScratch);
  }
  const MemoryPlan packed = recorder.plan(), counted = recorder.plan(Packing::none);
  CHECK(counted.phases[0].lower_bound == packed.phases[0].lower_bound);
  CHECK(counted.phases[0].bytes == counted.phases[0].lower_bound);
  CHECK(counted.total_bytes() == 256 + 512 + 1280);
  CHECK(packed.total_bytes() >= counted.total_bytes());
  CHECK(counted.by_category().size() == packed.by_category().size());
}
