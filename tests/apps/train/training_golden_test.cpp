#include <cmath>
#include <fstream>

#include "core/cpu/isa.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/ops/matmul/matmul.h"
#include "core/parallel_for.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"

// A curve that a refactoring reproduces bit for bit and a change of numerics moves on purpose.
// scripts/reference/update_golden_loss.sh writes it anew.

using namespace ottava;
using namespace ottava::test;

namespace {

const std::string kPath = OTTAVA_SOURCE_DIR "/tests/golden/debug_loss.json";

// The design lets the bits depend on the number of threads (training.threads, OMP_NUM_THREADS): a library may
// split a sum among them. Ours do not, and where the key matches, oneDNN gives these shapes the same bits
// too: one curve for both.
constexpr int kThreads[] = {1, 2};

/// What the bits depend on besides the sources.
Json key_of_this_machine() {
  Json key;
  key.set("isa", std::string(cpu::name_of(cpu::isa())));
  key.set("threads", "1 and 2");
  key.set("matmul", matmul_backend_description());
#if defined(NDEBUG)
  key.set("build", "release, compiler " __VERSION__);
#else
  key.set("build", "debug, compiler " __VERSION__);
#endif
  return key;
}

std::vector<double> curve(TinyTraining& tiny, const std::string& dtype, int threads) {
  set_parallel_threads(threads);
  const std::string name = dtype + std::to_string(threads);
  TinyTraining::Run run =
      tiny.start(name, {"--training.steps", "20", "--training.mixed_precision_param", dtype, "--optimizer.lr",
                        "0.01", "--training.seq_len", "64", "--training.global_batch_size", "4"});
  run->run();
  set_parallel_threads(1);
  return logged(tiny / name, "loss_metrics/global_avg_loss");
}

}  // namespace

TEST_CASE(
    "the golden loss curve is reproduced on one thread and on two: bitwise where its key matches, to 1e-3 "
    "elsewhere") {
  TinyTraining tiny;
  const Json golden = Json::parse(read_file(kPath), kPath);
  const std::string here = key_of_this_machine().dump(), there = golden.at("key", kPath).dump();
  const bool is_bitwise = here == there;
  if (!is_bitwise) WARN("compared to 1e-3 only: the curve is bitwise for " << there << ", this is " << here);
  for (const char* dtype : {"float32", "bfloat16"}) {
    const Json::Array& expected = golden.at(dtype, kPath).as_array(dtype);
    for (int threads : kThreads) {
      const std::vector<double> losses = curve(tiny, dtype, threads);
      REQUIRE(losses.size() == expected.size());
      for (size_t i = 0; i < losses.size(); ++i) {
        INFO(dtype << " on " << threads << " thread(s), step " << i + 1);
        const double value = expected[i].as_number(dtype);
        if (is_bitwise) {
          CHECK(losses[i] == value);
        } else {
          CHECK(losses[i] == Approx(value).epsilon(1e-3));
        }
      }
    }
  }
}

TEST_CASE("write the golden loss curve", "[.write]") {
  TinyTraining tiny;
  Json golden;
  golden.set("key", key_of_this_machine());
  for (const char* dtype : {"float32", "bfloat16"}) {
    const std::vector<double> losses = curve(tiny, dtype, kThreads[0]);
    CHECK(curve(tiny, dtype, kThreads[1]) == losses);
    Json list{Json::Array{}};
    for (double loss : losses) list.push(loss);
    golden.set(dtype, std::move(list));
  }
  std::ofstream(kPath) << golden.dump(2) << '\n';
}
