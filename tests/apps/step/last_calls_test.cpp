#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "core/io/file.h"
#include "tests/apps/step/small_job.h"
#include "tests/support/catch.h"
#include "tests/support/launched.h"

using namespace ottava;
using namespace ottava::test;
namespace fs = std::filesystem;

TEST_CASE("ranks that lose one write down their last calls") {
  Job job;
  const std::string command = "exec " + std::string(OTTAVA) + " launch -n 4 --" +
                              job.train("--training.steps 100000 --comm.trace_buf_size 50");
  const Outcome o = run_command(command, [&](int) {
    REQUIRE(
        wait_until(200, [&] { return fs::exists(job.out() + "/metrics.jsonl") && job.last_step() >= 3; }));
    ::kill(process_of_rank(job.file(), 1), SIGKILL);
  });
  INFO(o.output);
  CHECK(o.exit_code != 0);
  for (int rank : {0, 2, 3}) {
    const std::string path = fmt::format("{}/comm_traces/rank_{}.json", job.out(), rank);
    const Json json = Json::parse(read_file(path), path);
    CHECK_THAT(json.at("reason", path).as_string("reason"), Catch::Contains("rank 1"));
    const Json::Array& entries = json.at("entries", path).as_array("entries");
    CHECK(entries.size() == 50);
    CHECK(entries.back().at("record_id", path).as_integer("id") >= 50);
    CHECK(entries.front().at("state", path).as_string("state") == "completed");
    CHECK(std::ranges::any_of(
        entries, [&](const Json& e) { return e.at("pg_name", path).as_string("pg") == "dp_shard"; }));
  }
  CHECK_FALSE(fs::exists(job.out() + "/comm_traces/rank_1.json"));
}
