#include <signal.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "core/io/file.h"
#include "core/io/gzip.h"
#include "core/trace/time_split.h"
#include "parallel/checkpoint/manifest.h"
#include "tests/apps/step/launched_job.h"

// Traces of the program's own runs, read back as a tool reads them.

using namespace ottava;
using namespace ottava::test;
namespace fs = std::filesystem;

namespace {

struct Slice {
  std::string name, category;
  int64_t pid, track, begin, end;  // nanoseconds
  const Json* args;
};

struct Trace {
  Json json;
  std::vector<Slice> slices;
  std::map<int64_t, std::string> tracks;
  std::map<int64_t, std::vector<const Json*>> arrows;

  explicit Trace(const std::string& path) : json(Json::parse(gunzip(read_file(path), path), path)) {
    for (const Json& e : json.at("traceEvents", path).as_array(path)) {
      const std::string phase = e.at("ph", path).as_string(path);
      const int64_t track = e.at("tid", path).as_integer(path);
      const std::string& name = e.at("name", path).as_string(path);
      if (phase == "M" && name == "thread_name")
        tracks[track] = e.at("args", path).at("name", path).as_string(path);
      if (phase == "s" || phase == "f") arrows[e.at("id", path).as_integer(path)].push_back(&e);
      if (phase != "X") continue;
      const int64_t begin = std::llround(1000 * e.at("ts", path).as_number(path));
      slices.push_back({name, e.at("cat", path).as_string(path), e.at("pid", path).as_integer(path), track,
                        begin, begin + std::llround(1000 * e.at("dur", path).as_number(path)),
                        e.find("args")});
    }
  }
  const Json& about(const char* name) const { return json.at("ottava", "trace").at(name, "trace"); }
  std::vector<Slice> of(const std::string& category, const std::string& track) const {
    std::vector<Slice> out;
    for (const Slice& e : slices)
      if (e.category == category && tracks.at(e.track) == track) out.push_back(e);
    return out;
  }
};

std::string trace_path(const Job& job, int step, int rank) {
  return fmt::format("{}/profile_traces/iteration_{}/rank{}_trace.json.gz", job.out(), step, rank);
}

const std::string kTraced =
    " --profiling.enable_profiling true --profiling.profile_freq 5 --profiling.profiler_active 2"
    " --profiling.profiler_warmup 1 --training.steps 10";

void check_nesting(const Trace& trace) {
  std::map<int64_t, std::vector<Slice>> by_track;
  for (const Slice& e : trace.slices) by_track[e.track].push_back(e);
  for (auto& [track, events] : by_track) {
    std::ranges::sort(events, [](const Slice& a, const Slice& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    std::vector<int64_t> open;
    for (const Slice& e : events) {
      while (!open.empty() && open.back() <= e.begin) open.pop_back();
      INFO("track " << trace.tracks.at(track) << ": " << e.name);
      CHECK(e.end >= e.begin);
      if (!open.empty()) CHECK(e.end <= open.back());
      open.push_back(e.end);
    }
  }
}

void check_split(const Trace& trace) {
  std::vector<Interval> compute, communication;
  for (const Slice& e : trace.slices) {
    if (e.category != "kernel") continue;
    (e.name.starts_with("nccl") ? communication : compute).push_back({e.begin, e.end});
  }
  const TimeSplit s = split_time(compute, communication);
  auto own = [&](const char* part) { return trace.about("split_ns").at(part, "split").as_integer(part); };
  CHECK(s.total == own("total"));
  CHECK(s.compute == own("compute"));
  CHECK(s.communication == own("communication"));
  CHECK(s.exposed == own("exposed"));
  CHECK(s.idle == own("idle"));
  CHECK(s.compute > 0);
}

}  // namespace

TEST_CASE("four ranks trace their steps on one timeline") {
  Job job;
  run(OTTAVA + std::string(" launch -n 4 --") + job.train(kTraced) +
      " --parallelism.tensor_parallel_degree 2 --training.local_batch_size 1 --checkpoint.enable true "
      "--checkpoint.interval 3 --checkpoint.async_mode async");
  std::set<int64_t> pids;
  int64_t first_begin = 0, first_end = 0;
  std::map<std::string, int64_t> bytes;
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(fs::exists(trace_path(job, 5, rank)));
    const Trace trace(trace_path(job, 10, rank));
    check_nesting(trace);
    check_split(trace);
    CHECK(trace.about("planned").as_bool("planned"));
    CHECK_FALSE(trace.about("is_cut").as_bool("is_cut"));
    CHECK(trace.about("steps").as_array("steps").size() == 2);
    CHECK(trace.json.at("distributedInfo", "t").at("rank", "t").as_integer("r") == rank);
    CHECK(trace.json.at("distributedInfo", "t").at("world_size", "t").as_integer("w") == 4);
    for (const Slice& e : trace.slices) pids.insert(e.pid);

    std::vector<Slice> steps;
    for (const Slice& e : trace.of("user_annotation", "host"))
      if (e.name.starts_with("ProfilerStep#")) steps.push_back(e);
    REQUIRE(steps.size() == 2);
    CHECK(steps[0].name == "ProfilerStep#9");
    CHECK(steps[1].name == "ProfilerStep#10");
    // One timeline: a step of one rank overlaps that of every other.
    if (rank == 0) first_begin = steps[0].begin, first_end = steps[0].end;
    CHECK(steps[0].begin < first_end);
    CHECK(steps[0].end > first_begin);

    const std::vector<Slice> reads = trace.of("user_annotation", "data");
    CHECK(reads.size() == 2);
    // Step 9 is saved while step 10 is traced.
    CHECK(std::ranges::any_of(trace.of("user_annotation", "host"),
                              [](const Slice& e) { return e.name == "save"; }));
    CHECK(std::ranges::any_of(trace.of("user_annotation", "saves"), [](const Slice& e) {
      return e.name == "write the checkpoint of step 9" && e.end > e.begin;
    }));
    const std::vector<Slice> operations = trace.of("kernel", "compute");
    CHECK(std::ranges::any_of(operations, [](const Slice& e) {
      return e.name == "attention.core" && e.args->at("planned FLOPs", "a").as_number("f") > 0 &&
             e.args->at("planned us", "a").as_number("u") > 0 &&
             e.args->at("TFLOP/s", "a").as_number("t") > 0;
    }));
    CHECK(std::ranges::any_of(trace.of("user_annotation", "compute"),
                              [](const Slice& e) { return e.name == "layers.1 backward"; }));
    CHECK_FALSE(trace.of("wait", "compute").empty());
    std::map<std::string, int64_t> last{{"dp_shard", -1}, {"tp", -1}};  // of the calls' numbers
    for (const std::string axis : {"dp_shard", "tp"}) {
      const std::vector<Slice> calls = trace.of("kernel", "axis " + axis);
      REQUIRE_FALSE(calls.empty());
      for (const Slice& e : calls) {
        CHECK(e.args->at("Process Group Name", "a").as_string("g") == axis);
        CHECK(e.args->at("Group size", "a").as_integer("n") == 2);
        CHECK(e.args->at("planned us", "a").as_number("u") > 0);
        CHECK(e.args->at("In msg nelems", "a").as_integer("n") > 0);
        CHECK(e.args->at("Out msg nelems", "a").as_integer("n") > 0);
        CHECK(e.args->at("dtype", "a").as_string("d") == "Float");
        CHECK_FALSE(e.args->at("Collective name", "a").as_string("c").empty());
        const int64_t sequence = e.args->at("Seq", "a").as_integer("s");
        CHECK(sequence > last[axis]);
        last[axis] = sequence;
        bytes[axis] += e.args->at("sent bytes", "a").as_integer("b");
      }
      CHECK(bytes[axis] > 0);
    }
    REQUIRE_FALSE(trace.arrows.empty());
    for (const auto& [id, pair] : trace.arrows) {
      REQUIRE(pair.size() == 2);
      CHECK(pair[0]->at("ts", "a").as_number("ts") <= pair[1]->at("ts", "a").as_number("ts"));
    }
  }
  CHECK(pids == std::set<int64_t>{0, 1, 2, 3});

  const Outcome o = run_command(OTTAVA + std::string(" trace ") + job.out() +
                                "/profile_traces/iteration_10 --merge " + job.in("all.json.gz"));
  INFO(o.output);
  REQUIRE(o.exit_code == 0);
  CHECK_THAT(o.output, Catch::Contains("exposed") && Catch::Contains("All ranks: " + job.in("all.json.gz")) &&
                           !Catch::Contains("missing"));
  const Trace all(job.in("all.json.gz"));
  std::set<int64_t> merged;
  for (const Slice& e : all.slices) merged.insert(e.pid);
  CHECK(merged == pids);
  // It may lie beside them, and is none of them.
  const std::string folder = job.out() + "/profile_traces/iteration_10";
  fs::copy_file(job.in("all.json.gz"), folder + "/all_trace.json.gz");
  CHECK(o.output.starts_with(run_command(OTTAVA + std::string(" trace ") + folder).output));

  // An earlier run with more ranks has left a file in the folder.
  std::string left = gunzip(read_file(trace_path(job, 10, 2)), "trace");
  for (const auto& [text, other] : {std::pair{"\"baseTimeNanoseconds\":", "\"baseTimeNanoseconds\":-"},
                                    std::pair{"\"rank\":2", "\"rank\":5"}}) {
    REQUIRE(left.find(text) != std::string::npos);
    left.replace(left.find(text), std::strlen(text), other);
  }
  std::ofstream(trace_path(job, 10, 5), std::ios::binary) << gzip(left, "x");
  const Outcome of_last =
      run_command(OTTAVA + std::string(" trace ") + folder + " --merge " + job.in("last.json"));
  CHECK_THAT(of_last.output, Catch::Contains("Left out as of an earlier run in this folder: rank 5\n") &&
                                 Catch::Contains("All ranks: " + job.in("last.json")) &&
                                 !Catch::Contains("\n    5 "));
  fs::remove(trace_path(job, 10, 5));

  const auto without = [&](int rank) {
    fs::remove(trace_path(job, 10, rank));
    return run_command(OTTAVA + std::string(" trace ") + folder + " --merge " + job.in("some.json")).output;
  };
  CHECK_THAT(
      without(1),
      Catch::Contains("Only 3 of the run's 4 ranks have a trace in this folder; rank 1 is missing\n") &&
          Catch::Contains("The ranks that have one: " + job.in("some.json")));
  CHECK_THAT(
      without(0),
      Catch::Contains("Only 2 of the run's 4 ranks have a trace in this folder; ranks 0, 1 are missing\n"));
}

TEST_CASE("stages of a pipeline and ranks that share sequences have tracks, planned and measured") {
  Job job;
  run(OTTAVA + std::string(" launch -n 4 --") + job.train(kTraced) +
      " --parallelism.pipeline_parallel_degree 2 --parallelism.context_parallel_degree 2 --training.seq_len "
      "512 "
      "--training.global_batch_size 2");
  for (int rank = 0; rank < 4; ++rank) {
    const Trace trace(trace_path(job, 10, rank));
    check_nesting(trace);
    check_split(trace);
    CHECK(trace.about("planned").as_bool("planned"));
    for (const std::string axis : {"pp", "cp"}) {
      INFO("rank " << rank << " axis " << axis);
      // Beside those of the step there may be calls of the loop around it, which nothing plans.
      std::vector<Slice> calls = trace.of("kernel", "axis " + axis);
      std::erase_if(calls, [](const Slice& e) {
        return e.name.find("micro-batch") == std::string::npos &&
               e.name.find("keys and values") == std::string::npos;
      });
      REQUIRE_FALSE(calls.empty());
      for (const Slice& e : calls) {
        INFO(e.name);
        const Json* planned = e.args->find("planned us");
        REQUIRE(planned != nullptr);
        CHECK(planned->as_number("us") > 0);
      }
    }
  }
}

TEST_CASE("tensor parallel in blocks is traced call by call, planned and measured") {
  Job job;
  const std::string options =
      " --parallelism.tensor_parallel_degree 2 --parallelism.enable_async_tensor_parallel true "
      "--training.local_batch_size 2 --lr_scheduler.decay_ratio 0" +
      kSave;
  run(OTTAVA + std::string(" launch -n 2 --") + job.train("--training.steps 4" + options));
  // Which is faster here is no matter: the run goes on as if blocks were.
  const std::string folder = job.checkpoints() + "/step-4/", path = folder + "decisions.json";
  std::string decisions = read_file(path);
  for (size_t at; (at = decisions.find("\"bulk\"")) != std::string::npos;)
    decisions.replace(at, 6, "\"blocks\"");
  std::ofstream(path) << decisions;
  const std::string name = folder + std::string(checkpoint::kManifestName);
  checkpoint::Manifest manifest = checkpoint::parse_manifest(read_file(name), name);
  for (checkpoint::Manifest::File& file : manifest.files) {
    if (file.name != "decisions.json") continue;
    file.bytes = std::ssize(decisions);
    file.checksum = XXH64(decisions.data(), decisions.size(), 0);
  }
  std::ofstream(name) << to_text(manifest);
  run(OTTAVA + std::string(" launch -n 2 --") + job.train(kTraced + options));
  for (int rank = 0; rank < 2; ++rank) {
    INFO("rank " << rank);
    const Trace trace(trace_path(job, 10, rank));
    check_nesting(trace);
    check_split(trace);
    CHECK(trace.about("planned").as_bool("planned"));
    int messages = 0;
    for (const Slice& e : trace.of("kernel", "axis tp")) {
      if (e.name.find("Send") == std::string::npos) continue;
      ++messages;
      INFO(e.name);
      const Json* planned = e.args->find("planned us");
      REQUIRE(planned != nullptr);
      CHECK(planned->as_number("us") > 0);
      CHECK(e.args->at("sent bytes", "a").as_integer("b") > 0);
    }
    CHECK(messages > 2 * 4 * 2);  // two steps of four micro-batches of two blocks
    CHECK_FALSE(trace.arrows.empty());
    for (const auto& [id, pair] : trace.arrows) CHECK(pair.size() == 2);
  }
}

#ifdef OTTAVA_NVTX_RECORDER
TEST_CASE("traced steps have NVTX ranges that nest, and a run without them none") {
  Job job;
  const auto ranges = [&](const std::string& file, const std::string& options) {
    run("NVTX_INJECTION64_PATH=" OTTAVA_NVTX_RECORDER " OTTAVA_NVTX_FILE=" + job.in(file) + " " OTTAVA +
        job.train(kTraced + options));
    std::map<std::string, int> pushed;
    int depth = 0;
    std::ifstream lines(fs::exists(job.in(file)) ? job.in(file) : "/dev/null");
    for (std::string line; std::getline(lines, line);) {
      line == "pop" ? --depth : ++depth;
      REQUIRE(depth >= 0);
      if (line.starts_with("push ")) ++pushed[line.substr(5)];
    }
    CHECK(depth == 0);
    return pushed;
  };
  const std::map<std::string, int> with = ranges("with", " --profiling.enable_nvtx true");
  // Of every five steps three are warm-up or traced; each has eight micro-batches of two blocks.
  CHECK(with.at("layers.1 backward") == 2 * 3 * 8);
  // Of both forward and backward, and of every second once more, recomputed.
  CHECK(with.at("attention.core") == 2 * 3 * 8 * 5);
  CHECK(with.at("optimizer") > 0);
  CHECK(ranges("without", "").empty());
}
#else
TEST_CASE("NVTX ranges are refused where the program has none") {
  Job job;
  const Outcome o = run_command(OTTAVA + job.train(kTraced + " --profiling.enable_nvtx true"));
  CHECK(o.exit_code == 1);
  CHECK_THAT(o.output, Catch::Contains("profiling.enable_nvtx") && Catch::Contains("built without NVTX"));
}
#endif

TEST_CASE("without profiling nothing is written, and a run computes the same with it") {
  Job plain, traced;
  run(OTTAVA + plain.train("--training.steps 10"));
  run(OTTAVA + traced.train(kTraced));
  CHECK_FALSE(fs::exists(plain.out() + "/profile_traces"));
  const Trace trace(trace_path(traced, 5, 0));
  check_nesting(trace);
  check_split(trace);
  const Curve a = plain.curve(), b = traced.curve();
  REQUIRE(a.size() == 10);
  for (const auto& [step, point] : a) {
    CHECK(point.loss == b.at(step).loss);
    CHECK(point.grad_norm == b.at(step).grad_norm);
  }
}

TEST_CASE("a trace without all of its calls says so") {
  for (const int kept : {0, 3}) {
    Job job;
    const Outcome o = run_command(OTTAVA + std::string(" launch -n 2 --") + job.train(kTraced) +
                                  fmt::format(" --comm.trace_buf_size {}", kept));
    INFO(o.output);
    REQUIRE(o.exit_code == 0);
    for (int rank = 0; rank < 2; ++rank) {
      const Trace trace(trace_path(job, 10, rank));
      CHECK(trace.about("is_cut").as_bool("is_cut"));
      CHECK_THAT(o.output,
                 Catch::Contains(fmt::format("rank {}: the trace of step 10 lacks ", rank)) &&
                     Catch::Contains(fmt::format("calls between ranks, as comm.trace_buf_size is {}", kept)));
    }
  }
}

TEST_CASE("only the ranks that were asked for write traces, and one that is not there is refused") {
  Job job;
  run(OTTAVA + std::string(" launch -n 2 --") + job.train(kTraced + " --profiling.profile_ranks 1"));
  CHECK_FALSE(fs::exists(trace_path(job, 5, 0)));
  CHECK(fs::exists(trace_path(job, 5, 1)));
  const Outcome o = run_command(OTTAVA + job.train(kTraced + " --profiling.profile_ranks 0,3"));
  CHECK(o.exit_code == 1);
  CHECK_THAT(o.output, Catch::Contains("profile_ranks contains rank 3, expected ranks 0 to 0"));
}

TEST_CASE("traces that cannot be written or do not fit their steps are refused before the first step") {
  Job job;
  std::ofstream(job.in("file")) << "no folder";
  Outcome o = run_command(OTTAVA + job.train(kTraced + " --profiling.save_traces_folder " + job.in("file")));
  CHECK(o.exit_code == 1);
  CHECK_THAT(o.output, Catch::Contains("cannot write traces into") && !Catch::Contains("step:  1"));
  o = run_command(OTTAVA + job.train(kTraced + " --profiling.profile_freq 2"));
  CHECK(o.exit_code == 1);
  CHECK_THAT(o.output, Catch::Contains("2 is less than profiler_warmup 1 + "
                                       "profiler_active 2"));
  o = run_command(OTTAVA + job.train(kTraced + " --profiling.profile_ranks some"));
  CHECK_THAT(o.output, Catch::Contains("expected auto, all or numbers"));
  o = run_command(OTTAVA + std::string(" trace ") + job.in("nowhere"));
  CHECK(o.exit_code == 1);
  CHECK_THAT(o.output, Catch::Contains("[file] cannot list"));
}
