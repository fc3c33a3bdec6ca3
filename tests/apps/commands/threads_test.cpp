#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "core/threads/allowed_cpus.h"
#include "tests/apps/commands/workplace.h"
#include "tests/support/skip.h"

// How many threads a run has, where they run and how they wait, whatever the environment says to OpenMP.

using namespace ottava;
using namespace ottava::test;

TEST_CASE("threads far above what the machine has are told") {
  const Workplace place;
  const unsigned cpus = std::thread::hardware_concurrency();
  const auto run = [&](unsigned threads) {
    return place
        .run("train tiny.yaml --checkpoint.enable false --training.steps 1 --training.threads " +
             std::to_string(threads))
        .output;
  };
  CHECK(has(run(2 * cpus + 1), "training.threads " + std::to_string(2 * cpus + 1) + " is far above the "));
  CHECK_FALSE(has(run(1), "is far above"));
  const std::string variable = "OMP_NUM_THREADS=" + std::to_string(2 * cpus + 1);
  CHECK(has(
      place
          .run_shell(variable + " " OTTAVA " train tiny.yaml --checkpoint.enable false --training.steps 1 "
                                "--training.threads 0")
          .output,
      "OMP_NUM_THREADS " + std::to_string(2 * cpus + 1) + " is far above the "));
}

TEST_CASE("whatever OpenMP's variables say, products are whole") {
  const Workplace place;
  const std::string more = std::to_string(std::thread::hardware_concurrency() + 1);
  const auto run = [&](const std::string& variables) {
    const std::string folder = "out" + std::to_string(std::hash<std::string>()(variables));
    const Outcome out =
        place.run_shell("env -u OMP_DYNAMIC -u OMP_THREAD_LIMIT -u OMP_MAX_ACTIVE_LEVELS " + variables +
                        " " OTTAVA
                        " train tiny.yaml --checkpoint.enable false --training.steps 2 --training.threads 0 "
                        "--model.dim 128 --model.ffn_dim 256 --training.seq_len 128 --job.dump_folder " +
                        folder);
    INFO(variables << out.output);
    CHECK(out.exit_code == 0);
    return std::pair(out.output, logged(place / folder, "grad_norm"));
  };
  const auto [silent, one] = run("OMP_NUM_THREADS=1");
  CHECK_FALSE(has(silent, "by OMP_THREAD_LIMIT"));
  CHECK_FALSE(has(silent, "OMP_DYNAMIC"));
  for (const std::string limit : {"OMP_THREAD_LIMIT=1", "OMP_MAX_ACTIVE_LEVELS=0"}) {
    const auto [said, limited] = run("OMP_NUM_THREADS=2 " + limit);
    CHECK(has(said, "this run has 1 thread instead of 2, by OMP_THREAD_LIMIT or OMP_MAX_ACTIVE_LEVELS"));
    CHECK(limited == one);
  }
  CHECK(run("OMP_NUM_THREADS=3 OMP_THREAD_LIMIT=2").second == run("OMP_NUM_THREADS=2").second);
  const auto [said, dynamic] = run("OMP_NUM_THREADS=" + more + " OMP_DYNAMIC=true");
  CHECK(has(said, "OMP_DYNAMIC has no effect: " + more + " threads, in every loop"));
  CHECK(dynamic == run("OMP_NUM_THREADS=" + more).second);
}

TEST_CASE("threads spin briefly unless the user says how they wait") {
  auto settings = [](const std::string& environment) {
    return run_command("env -u GOMP_SPINCOUNT -u OMP_WAIT_POLICY OMP_DISPLAY_ENV=verbose " + environment +
                       " " OTTAVA " --version")
        .output;
  };
  CHECK(has(settings(""), "GOMP_SPINCOUNT = '5000'"));
  CHECK_FALSE(has(settings("OMP_WAIT_POLICY=passive"), "GOMP_SPINCOUNT = '5000'"));
  CHECK(has(settings("GOMP_SPINCOUNT=77"), "GOMP_SPINCOUNT = '77'"));
  CHECK_FALSE(has(settings("GOMP_SPINCOUNT=77"), "GOMP_SPINCOUNT = '5000'"));
}

TEST_CASE("whatever binds OpenMP's threads, a rank has all of its CPUs") {
  const Workplace place;
  const size_t cpus = allowed_cpus().size();
  if (cpus < 2) return skip("this process may use one CPU only");
  const auto run = [&](const std::string& variables, const std::string& launch) {
    const Outcome out = place.run_shell(
        "env -u GOMP_SPINCOUNT -u OMP_WAIT_POLICY OMP_NUM_THREADS=1 " + variables + " " OTTAVA " " + launch +
        "train tiny.yaml --checkpoint.enable false --training.steps 1 --training.threads 0");
    INFO(variables << out.output);
    CHECK(out.exit_code == 0);
    return out.output;
  };
  const auto unbound = [](const std::string& binding, size_t of) {
    return "No thread is bound to a place (" + binding + "): those of a rank run on any of its " +
           std::to_string(of) + " CPU";
  };
  for (const std::string binding : {"OMP_PROC_BIND=close", "OMP_PROC_BIND=true OMP_PLACES=cores"}) {
    // Where the program starts again to set how threads wait, and where that is set.
    CHECK(has(run(binding, ""), unbound(binding, cpus)));
    CHECK(has(run(binding + " OMP_WAIT_POLICY=passive", ""), unbound(binding, cpus)));
    CHECK(has(run(binding, "launch -n 2 -- "), unbound(binding, cpus / 2)));
  }
  const std::string last = std::to_string(allowed_cpus().back());
  CHECK(has(run("OMP_PLACES={" + last + "}", ""), unbound("OMP_PLACES={" + last + "}", 1)));
  CHECK_FALSE(has(run("OMP_PROC_BIND=false OMP_PLACES=cores", ""), "bound to a place"));
}

TEST_CASE("ranks that have one CPU between them are told") {
  const Workplace place;
  const std::string last = std::to_string(allowed_cpus().back());
  const auto run = [&](const std::string& ranks) {
    const Outcome out = place.run_shell("exec taskset -c " + last + " " OTTAVA " launch -n " + ranks +
                                        " -- train tiny.yaml --checkpoint.enable false --training.steps 1");
    INFO(out.output);
    CHECK(out.exit_code == 0);
    return out.output;
  };
  CHECK(has(run("2"), "ranks 0, 1 share 1 CPU (" + last + ") and wait for each other: "));
  CHECK_FALSE(has(run("1"), "wait for each other: "));
}
