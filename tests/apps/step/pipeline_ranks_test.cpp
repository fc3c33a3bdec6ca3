#include <signal.h>

#include <string>

#include <map>

#include "apps/config/planned_experiment.h"
#include "apps/predict/sample_step.h"
#include "core/io/file.h"
#include "core/io/gzip.h"
#include "parallel/pipeline/pipeline_program.h"
#include "tests/apps/step/launched_job.h"

// A pipeline of processes, as people start it.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

std::string pp(int degree, const std::string& schedule = "1F1B") {
  return fmt::format(" --parallelism.pipeline_parallel_degree {} --parallelism.pipeline_parallel_schedule {}",
                     degree, schedule);
}

const std::string kDeep = " --model.n_layers 6 --lr_scheduler.decay_ratio 0 --training.max_norm 1.0e9";
const std::string kWhole = kDeep + " --training.local_batch_size 8";
const std::string kValidates =
    " --validation.enable true --validation.freq 6 --validation.steps 2 "
    "--validation.local_batch_size 2 --validation.seq_len 16 ";

}  // namespace

TEST_CASE("a pipeline of processes trains as one process does, in every schedule") {
  static const Curve single = [] {
    Job job;
    run(OTTAVA + job.train(kDeep));
    return job.curve();
  }();
  const auto [ranks, options] = GENERATE_REF(
      table<int, std::string>({{2, pp(2)},
                               {4, pp(4, "gpipe")},
                               {2, pp(2, "Interleaved1F1B")},
                               {2, pp(2, "LoopedBFS") + " --training.mixed_precision_param float32"},
                               {2, pp(2, "InterleavedZeroBubble")},
                               {2, pp(2, "ZBVZeroBubble")},
                               {2, pp(2) + " --parallelism.pipeline_parallel_split_points [layers.4]"}}));
  INFO(ranks << " ranks," << options);
  Job job;
  run(launch(ranks, job.train(kWhole + options)));
  require_near(job.curve(), single);
}

namespace {

/// Bytes that a rank's trace has it send to other stages, by what is sent; -1 for what it sends twice.
std::map<std::string, int64_t> sent_to_stages(const Job& job, int step, int rank) {
  const std::string path =
      fmt::format("{}/profile_traces/iteration_{}/rank{}_trace.json.gz", job.out(), step, rank);
  const Json trace = Json::parse(gunzip(read_file(path), path), path);
  const std::string name = "ncclKernel_Send ";
  std::map<std::string, int64_t> out;
  for (const Json& e : trace.at("traceEvents", path).as_array(path)) {
    const std::string& event = e.at("name", path).as_string(path);
    const Json* args = e.find("args");
    if (!event.starts_with(name) || args->at("Process Group Name", path).as_string(path) != "pp") continue;
    const auto [entry, is_new] =
        out.try_emplace(event.substr(name.size()), args->at("sent bytes", path).as_integer(path));
    if (!is_new) entry->second = -1;
  }
  return out;
}

}  // namespace

TEST_CASE("eight processes, pp 2 x tp 2 x dp 2, send what the schedule says, in every schedule") {
  constexpr int kMicroBatches = 4, kSteps = 3;
  static const Curve single = [] {
    Job job;
    run(OTTAVA + job.train(kDeep + " --training.steps 3"));
    return job.curve();
  }();
  const auto [kind, chunks] = GENERATE(table<ScheduleKind, int>({{ScheduleKind::gpipe, 1},
                                                                 {ScheduleKind::one_f_one_b, 1},
                                                                 {ScheduleKind::interleaved_1f1b, 2},
                                                                 {ScheduleKind::looped_bfs, 2},
                                                                 {ScheduleKind::interleaved_zero_bubble, 2},
                                                                 {ScheduleKind::zbv_zero_bubble, 2}}));
  INFO(name_of(kind));
  Job job;
  run(launch(8, job.train(kDeep + pp(2, std::string(name_of(kind))) +
                          " --parallelism.tensor_parallel_degree 2 --training.local_batch_size 4"
                          " --training.steps 3 --profiling.enable_profiling true --profiling.profile_freq 3"
                          " --profiling.profiler_active 1 --profiling.profiler_warmup 1")));
  require_near(job.curve(), single);
  const PipelineProgram program =
      make_program(make_schedule({kind, 2, chunks, kMicroBatches}), Receives::late);
  // Half of a micro-batch's one sequence of 16 tokens, 32 wide, in f32.
  constexpr int64_t kBytes = 16 / 2 * 32 * 4;
  for (int rank = 0; rank < 8; ++rank) {
    INFO("rank " << rank);
    std::map<std::string, int64_t> want;
    for (const StageTransfer& t : program.transfers) {
      if (t.from == rank / 4)
        want[fmt::format("{} of micro-batch {} from stage {}", t.is_gradient ? "gradient" : "output",
                         t.micro_batch, t.stage)] = kBytes;
    }
    CHECK(sent_to_stages(job, kSteps, rank) == want);
  }
}

TEST_CASE("the utilization of a pipeline's run is the mean of its ranks'") {
  Job job;
  const std::string options =
      kWhole + pp(2) + " --training.mixed_precision_param bfloat16 --metrics.peak_tflops_bf16 100";
  run(launch(2, job.train(options + " --training.steps 2")));
  const Config config = load_config(
      job.file(), {"--model.n_layers", "6", "--training.local_batch_size", "8",
                   "--parallelism.pipeline_parallel_degree", "2", "--parallelism.pipeline_parallel_schedule",
                   "1F1B", "--training.mixed_precision_param", "bfloat16"});
  const auto [device, e] = plan_experiment(config, 2);
  const std::vector<StepPlan> roles = sample_roles(e.shape, device, e.mesh);
  const StepFlops mean = mean_flops(roles);
  REQUIRE(roles[1].flops().bf16 > 1.5 * roles[0].flops().bf16);
  REQUIRE(mean.fp32 == 0);
  // Both against the same peak and time: what is left is FLOPs as computed over the model's.
  const double model_flops = model_flops_per_token(e.shape.model, e.shape.sequence) * e.tokens_per_step() / 2;
  const Json line = logged_lines(job.out()).back();
  CHECK(line.at("utilization(%)", "line").as_number("utilization") /
            line.at("mfu(%)", "line").as_number("mfu") ==
        Approx(mean.bf16 / model_flops));
}

TEST_CASE("checkpoints and validation of a pipeline are those of any layout") {
  Job job, whole;
  const std::string data = kValidates + "--validation.dataset_path " + job.in("text.txt");
  run(launch(4,
             job.train(kWhole + kSave + data + pp(4) + " --training.steps 4 --checkpoint.async_mode async")));
  run_from(4, OTTAVA + job.train(kDeep + kSave + data + " --training.steps 8"));
  run_from(8, launch(4, job.train(kWhole + kSave + data + pp(2, "Interleaved1F1B") +
                                  " --parallelism.tensor_parallel_degree 2")));
  run(OTTAVA + whole.train(kDeep + data));
  require_near(job.curve(), whole.curve());
  const auto want = validation_losses(whole), got = validation_losses(job);
  REQUIRE(want.size() >= 2);
  for (const auto& [step, loss] : want) CHECK(got.at(step) == Approx(loss).epsilon(1e-5));
}

TEST_CASE("questions are scored by a pipeline as by one process") {
  Job single;
  run(OTTAVA + single.train(kDeep + ask(single, 64) + "--training.steps 6"));
  const std::vector<double> want = scores(single);
  REQUIRE(want.size() == 9);  // at steps 1, 3 and 6
  for (const auto& [ranks, layout] : {std::pair{2, pp(2, "Interleaved1F1B")},
                                      std::pair{4, pp(2) + " --parallelism.tensor_parallel_degree 2"}}) {
    INFO(layout);
    Job job;
    run(launch(ranks, job.train(kWhole + ask(job, 64) + "--training.steps 6" + layout)));
    CHECK(scores(job) == want);
  }
}

TEST_CASE("a stage that dies is named with what it did last") {
  // Stages 0 and 2, and 1 and 3, share a rank where schedules are looped.
  const auto [ranks, victim, stage, options] = GENERATE(table<int, int, std::string, std::string>(
      {{2, 1, "1", pp(2)},
       {2, 0, "[02]", pp(2, "Interleaved1F1B")},
       {4, 3, "[12]", pp(2, "ZBVZeroBubble") + " --parallelism.tensor_parallel_degree 2"}}));
  const int rank = victim;
  Job job;
  const Outcome o =
      run_command(launch(ranks, job.train(kWhole + options + " --training.steps 100000")), [&](int group) {
        const bool trains = wait_until(200, [&] { return job.last_step() >= 3; });
        const int process = trains ? process_of_rank(job.file(), rank) : 0;
        ::kill(process ? process : group, process ? SIGKILL : SIGTERM);
      });
  INFO(options << "\n" << o.output);
  CHECK(o.exit_code != 0);
  CHECK_FALSE(o.timed_out);
  CHECK_THAT(o.output, Catch::Matchers::Matches(fmt::format("(?:.|\n)*rank {} is gone, last seen [^;]*"
                                                            "micro-batch [0-9]+ of stage {}\\)(?:.|\n)*",
                                                            rank, stage)));
  CHECK(wait_until(60, [&] { return processes_with(job.file()).empty(); }));
}

TEST_CASE("what a pipeline cannot do is refused in one sentence, before memory is taken") {
  Job job;
  const auto [ranks, options, text] = GENERATE(table<int, std::string, std::string>(
      {{2, " --model.tie_embeddings true", "ties its output layer to its embedding"},
       {2, " --training.local_batch_size 1 --training.global_batch_size 1",
        "schedule 1F1B on 2 ranks needs at least 2 micro-batches, got 1"},
       {2, " --parallelism.pipeline_parallel_microbatch_size 3",
        "local_batch_size 8 is not a multiple of pipeline_parallel_microbatch_size 3 (remainder 2)"},
       {2, " --parallelism.fsdp_reshard_after_forward always", "fsdp_reshard_after_forward is always"},
       {2, " --parallelism.fsdp_reduce_every_microbatch true", "fsdp_reduce_every_microbatch is true"},
       {2, " --parallelism.pipeline_parallel_layers_per_stage 3", "3 makes 3 stages of 8 layers"},
       {2, " --model.n_layers 1 --parallelism.pipeline_parallel_schedule Interleaved1F1B",
        "4 stages for 3 layers (embedding and head counted as 1 and 1)"},
       {2,
        " --training.mixed_precision_param bfloat16 --model.converters [quantize.linear.float8] "
        "--quantize.linear.float8.recipe_name delayed",
        "use recipe tensorwise or rowwise, or pipeline_parallel_degree 1"},
       {2, " --parallelism.module_fqns_per_model_part [layers.0]", "to say where stages begin"},
       {2, " --parallelism.pipeline_parallel_schedule 2F2B",
        "schedule \"2F2B\" is unknown: expected one of GPipe, 1F1B"},
       {2, " --parallelism.pipeline_parallel_schedule DualPipeV", "schedule DualPipeV is not supported"},
       {2, " --parallelism.pipeline_parallel_schedule_csv x.csv", "no schedule is read from a file"},
       {3, "", "3 / 2 is not whole"}}));
  const Outcome o = run_command(launch(ranks, job.train(kWhole + pp(2) + options)));
  INFO(options << "\n" << o.output);
  CHECK(o.exit_code != 0);
  CHECK_THAT(o.output, Contains(text));
}
