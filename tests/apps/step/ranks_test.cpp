#include <signal.h>

#include <filesystem>

#include "core/io/file.h"
#include "parallel/checkpoint/manifest.h"
#include "tests/apps/step/launched_job.h"

// The program itself under `ottava launch`, as people start it: it trains as one process does, goes on from a
// checkpoint of any layout, and survives the death of one.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

constexpr int kSteps = 12;
// Seconds for a run that works to get there; fewer than run_command gives the whole run.
constexpr double kPatience = 200;

}  // namespace

TEST_CASE("processes learn from conversations as one process does") {
  auto curve_of = [](const std::string& program, const std::string& options) {
    Job job;
    std::ofstream lines(job.in("chats.jsonl"));
    for (int i = 0; i < 400; ++i) {
      lines << fmt::format(R"({{"messages": [{{"role": "user", "content": "what is {} and {}?"}}, )", i,
                           i % 7)
            << fmt::format(R"({{"role": "assistant", "content": "it is {}"}}]}})",
                           std::string(static_cast<size_t>(i % 40), 'x'))
            << "\n";
    }
    lines.close();
    run(program +
        job.train(
            "--training.dataset_path " + job.in("chats.jsonl") +
            " --training.format messages --chat.template llama3 --model.hf_assets_path " OTTAVA_SOURCE_DIR
            "/tests/golden/chat/llama --model.vocab_size 708 --training.seq_len 512" +
            options));
    return job.curve();
  };
  const Curve single = curve_of(OTTAVA, " --training.local_batch_size 8");
  REQUIRE(single.size() == 12);
  CHECK(single.at(12).loss < single.at(1).loss);
  for (const auto& [options, micro] : {std::pair{"--parallelism.data_parallel_shard_degree 2", 2},
                                       std::pair{"--parallelism.tensor_parallel_degree 2", 4},
                                       std::pair{"--parallelism.context_parallel_degree 2", 4},
                                       std::pair{"--parallelism.pipeline_parallel_degree 2", 8}}) {
    INFO(options);
    const Curve several = curve_of(std::string(OTTAVA) + " launch -n 2 --",
                                   fmt::format(" --training.local_batch_size {} {}", micro, options));
    REQUIRE(several.size() == 12);
    for (const auto& [step, point] : single) {
      CHECK(std::abs(several.at(step).loss / point.loss - 1) < 1e-5);
      CHECK(std::abs(several.at(step).grad_norm / point.grad_norm - 1) < 1e-3);
    }
  }
}

TEST_CASE("processes mix sources as one process does, whatever they share") {
  struct Mixed {
    Curve curve;
    std::map<std::string, std::vector<double>> counts, losses;
  };
  auto mixed = [](const std::string& program, const std::string& options) {
    Job job;
    std::ofstream(job.in("b.txt")) << generated_text(400, 3);
    std::ofstream(job.in("c.txt")) << generated_text(30, 4);
    auto source = [&](const std::string& name, const std::string& file, int weight) {
      return fmt::format("{{name: {}, path: {}, weight: {}}}", name, job.in(file), weight);
    };
    run(program +
        job.train(fmt::format(" --training.dataset_path \"[]\" --training.mixture \"[{}, {}, {}]\" "
                              "--training.mixture_stages \"[{{from_step: 4, weights: [1, 1, 2]}}]\" "
                              "--training.steps 6 --training.seq_len 512{}",
                              source("a", "text.txt", 3), source("b", "b.txt", 2), source("c", "c.txt", 0),
                              options)));
    Mixed out{.curve = job.curve()};
    for (const std::string name : {"a", "b", "c"}) {
      for (const char* count : {"tokens", "share"})
        out.counts[name + " " + count] = logged(job.out(), fmt::format("mixture/{}/{}", name, count));
      out.losses[name] = logged(job.out(), fmt::format("mixture/{}/loss", name));
    }
    return out;
  };
  const Mixed single = mixed(OTTAVA, " --training.local_batch_size 8");
  REQUIRE(single.curve.size() == 6);
  CHECK(single.losses.at("a").size() == 6);
  CHECK(single.losses.at("c").size() == 3);  // it begins with step 4
  CHECK(single.counts.at("c tokens") == std::vector<double>{0, 0, 0, 4 * 512, 8 * 512, 12 * 512});
  for (const auto& [ranks, micro, options] :
       {std::tuple{2, 2, "data_parallel_shard_degree 2"},
        std::tuple{2, 4, "data_parallel_replicate_degree 2"}, std::tuple{2, 4, "tensor_parallel_degree 2"},
        std::tuple{2, 4, "context_parallel_degree 2"}, std::tuple{2, 8, "pipeline_parallel_degree 2"},
        std::tuple{4, 4, "pipeline_parallel_degree 2 --parallelism.data_parallel_shard_degree 2"}}) {
    INFO(options);
    const Mixed several = mixed(
        launch(ranks, ""), fmt::format(" --training.local_batch_size {} --parallelism.{}", micro, options));
    REQUIRE(several.curve.size() == 6);
    CHECK(several.counts == single.counts);
    for (const auto& [step, point] : single.curve)
      CHECK(std::abs(several.curve.at(step).loss / point.loss - 1) < 1e-5);
    for (const auto& [name, losses] : single.losses) {
      INFO("source " << name);
      REQUIRE(several.losses.at(name).size() == losses.size());
      for (size_t i = 0; i < losses.size(); ++i)
        CHECK(std::abs(several.losses.at(name)[i] / losses[i] - 1) < 1e-5);
    }
  }
}

TEST_CASE("processes continue prompts as one process does, and refuse where no rank has whole layers") {
  const std::string prompts =
      " --evaluation.enable true --evaluation.freq 6 --evaluation.prompts \"[the octave, one hand and]\" "
      "--evaluation.max_new_tokens 12";
  auto samples_of = [](const Job& job) {
    std::string text;
    for (const Json& line : logged_lines(job.out()))
      if (const Json* samples = line.find("samples")) text += samples->dump();
    return text;
  };
  Job single;
  run(OTTAVA + single.train(prompts));
  CHECK_THAT(samples_of(single), Contains("one hand and"));
  for (const auto& [ranks, options] :
       {std::pair{3, " --training.global_batch_size 9 --training.local_batch_size 3"},
        std::pair{4, " --parallelism.data_parallel_replicate_degree 2"}}) {
    INFO(options);
    Job job, alone;
    run(launch(ranks, job.train(prompts + options)));
    if (ranks == 3) run(OTTAVA + alone.train(prompts + options));
    CHECK(samples_of(job) == samples_of(ranks == 3 ? alone : single));
  }
  Job job;
  for (const auto& [options, name] :
       {std::pair{" --parallelism.tensor_parallel_degree 2", "tensor parallelism (degree 2)"},
        std::pair{" --parallelism.context_parallel_degree 2 --training.seq_len 512",
                  "context parallelism (degree 2)"},
        std::pair{" --parallelism.pipeline_parallel_degree 2 --training.local_batch_size 8",
                  "pipeline parallelism (degree 2)"}})
    check_refused(launch(2, job.train(prompts + options)), 2,
                  std::string("prompts are not supported with ") + name +
                      ": remove evaluation.prompts, and run ottava generate on the checkpoints");
}

TEST_CASE("processes train as one process does") {
  // 24 sequences per step on every layout, one micro-batch or several; the threads of layouts_test.cpp see
  // more models.
  const std::string steps =
      " --training.steps 20 --training.global_batch_size 24 --training.local_batch_size ";
  const std::string tied = " --model.tie_embeddings true";
  auto curve_of_one = [&](const std::string& options) {
    Job job;
    run(OTTAVA + job.train(steps + "24" + options));
    return job.curve();
  };
  static const Curve single = curve_of_one(""), single_tied = curve_of_one(tied);
  REQUIRE(single.size() == 20);
  const std::string tp2 = " --parallelism.tensor_parallel_degree 2";
  const auto [ranks, options] =
      GENERATE_REF(table<int, std::string>({{1, "6"},
                                            {2, "4"},
                                            {2, "12 --activation_checkpoint.mode full"},
                                            {3, "8"},
                                            {3, "8" + tied},
                                            {4, "2 --parallelism.data_parallel_replicate_degree 2"},
                                            {2, "24" + tp2},
                                            {4, "24 --parallelism.tensor_parallel_degree 4"},
                                            {4, "6" + tp2},
                                            {8, "3"}}));
  INFO(ranks << " ranks, --training.local_batch_size " << options);
  Job job;
  run(launch(ranks, job.train(steps + options)));
  const Curve curve = job.curve();
  REQUIRE(curve.size() == 20);
  for (const auto& [step, point] : options.ends_with(tied) ? single_tied : single) {
    INFO("step " << step);
    REQUIRE(curve.at(step).loss == Approx(point.loss).epsilon(1e-5));
    REQUIRE(curve.at(step).grad_norm == Approx(point.grad_norm).epsilon(1e-5));
  }
  if (options != "6" + tp2) return;
  Job again;
  run(launch(ranks, again.train(steps + options)));
  const Curve same = again.curve();
  for (const auto& [step, point] : curve) {
    CHECK(same.at(step).loss == point.loss);
    CHECK(same.at(step).grad_norm == point.grad_norm);
  }
}

TEST_CASE("a run goes on from a checkpoint of any layout and number of ranks") {
  Job job;
  // 4 steps on shards, 4 on replicas of shards, 4 on slices of matrices: the schedule is constant and does
  // not see the end.
  const std::string constant = kSave + " --lr_scheduler.decay_ratio 0";
  run(launch(2, job.train(constant + " --training.steps 4")));
  run_from(4, launch(4, job.train(constant +
                                  " --training.steps 8 --parallelism.data_parallel_replicate_degree 2")));
  run_from(8, launch(2, job.train(constant + " --training.steps 10 --parallelism.tensor_parallel_degree 2")));
  run_from(10, OTTAVA + job.train(constant));
  Job whole;
  run(OTTAVA + whole.train("--lr_scheduler.decay_ratio 0"));
  require_near(job.curve(), whole.curve());
}

TEST_CASE(
    "a rank that is killed stops the others, and the next start goes on from the last good checkpoint") {
  const bool while_saving = GENERATE(false, true);
  bool was_saving = false;
  Job job;
  const std::string forever = kSave +
                              " --training.steps 100000 --lr_scheduler.decay_ratio 0 --checkpoint.interval " +
                              (while_saving ? "1 --checkpoint.keep_latest_k 3" : "4");
  const Outcome o = run_command(launch(2, job.train(forever)), [&](int group) {
    const bool has_saved = wait_until(kPatience, [&] { return job.newest_checkpoint() >= 4; });
    const int victim = has_saved ? process_of_rank(job.file(), 1) : 0;
    if (victim == 0) {
      ::kill(group, SIGTERM);
      return;
    }
    if (while_saving) {
      // A save is on its way as long as there is a folder of that name.
      was_saving = wait_until(10, [&] {
        for (const auto& entry : fs::directory_iterator(job.checkpoints())) {
          if (entry.path().extension() == ".tmp") return true;
        }
        return false;
      });
    }
    ::kill(victim, SIGKILL);
  });
  INFO(o.output);
  CHECK(o.exit_code != 0);
  CHECK_FALSE(o.timed_out);
  CHECK_THAT(o.output, Contains("\nrank 0: ") && Contains("rank 1 is gone, last seen") &&
                           Contains("\nrank 1: ended by signal 9"));
  CHECK_THAT(o.output, !Contains("rank 0 is gone"));
  CHECK(was_saving == while_saving);
  CHECK(wait_until(60, [&] { return processes_with(job.file()).empty(); }));
  const int64_t saved = job.newest_checkpoint();
  REQUIRE(saved >= 4);
  CHECK_NOTHROW(checkpoint::open_checkpoint(job.checkpoints() + "/step-" + std::to_string(saved)));
  const Outcome again = run_command(launch(
      2, job.train(kSave + " --lr_scheduler.decay_ratio 0 --training.steps " + std::to_string(saved + 2))));
  INFO(again.output);
  CHECK(again.exit_code == 0);
  CHECK_THAT(again.output, Contains("Training starts at step " + std::to_string(saved + 1)));
  for (const auto& entry : fs::directory_iterator(job.checkpoints()))
    CHECK(entry.path().extension() != ".tmp");
}

TEST_CASE("saving in the background changes no bit of the run or of its checkpoints") {
  Job job, other;
  const std::string often = kSave + " --checkpoint.interval 2";
  run(launch(2, job.train(often)));
  const Outcome beside = run_command(launch(2, other.train(often + " --checkpoint.async_mode async")));
  INFO(beside.output);
  REQUIRE(beside.exit_code == 0);
  CHECK_THAT(beside.output, Contains("Saving the checkpoint of step 2 (in the background)\n"));
  CHECK_THAT(beside.output, Contains(fmt::format("Saving the checkpoint of step {}\n", kSteps)));
  REQUIRE(job.curve().size() == kSteps);
  for (const auto& [step, point] : job.curve()) {
    CHECK(other.curve().at(step).loss == point.loss);
    CHECK(other.curve().at(step).grad_norm == point.grad_norm);
  }
  for (int step = 2; step <= kSteps; step += 2) {
    INFO("step " << step);
    const std::string folder = "/step-" + std::to_string(step);
    const auto first = checkpoint::open_checkpoint(job.checkpoints() + folder),
               second = checkpoint::open_checkpoint(other.checkpoints() + folder);
    REQUIRE(!first.tensors.empty());
    REQUIRE(first.tensors.size() == second.tensors.size());
    for (size_t t = 0; t < first.tensors.size(); ++t)
      CHECK(first.tensors[t].checksum == second.tensors[t].checksum);
  }
}

TEST_CASE("what a run decided is kept, followed and compared") {
  Job job;
  const std::string constant = kSave + " --lr_scheduler.decay_ratio 0";
  run(launch(2, job.train(constant + " --training.steps 4")));
  const std::string decisions = job.checkpoints() + "/step-4/decisions.json";
  CHECK_THAT(read_file(decisions),
             Contains("fsdp_reduce_every_microbatch") && Contains("\"value\":\"false\""));
  CHECK(read_file(job.out() + "/decisions.json") == read_file(decisions));
  const Outcome again = run_command(launch(2, job.train(constant + " --training.steps 5")));
  INFO(again.output);
  CHECK(again.exit_code == 0);
  CHECK_THAT(again.output, Contains("Decided before: parallelism.fsdp_reduce_every_microbatch = false"));
  const Outcome afresh = run_command(launch(2, job.train(constant + " --training.steps 6 --redecide")));
  INFO(afresh.output);
  CHECK(afresh.exit_code == 0);
  CHECK_THAT(afresh.output, Contains("Decided: parallelism.fsdp_reduce_every_microbatch = false") &&
                                !Contains("Decided before"));
  CHECK_THAT(afresh.output, Contains("Training starts at step 6"));
}

#ifdef MPIEXEC
TEST_CASE("under mpirun ranks train alike, and SIGUSR1 to it saves") {
  const std::string mpirun = MPIEXEC " -n 2 --oversubscribe --bind-to none --allow-run-as-root " OTTAVA;
  Job job, launched;
  run(launch(2, launched.train()));
  run(mpirun + job.train());
  REQUIRE(launched.curve().size() == kSteps);
  for (const auto& [step, point] : launched.curve()) CHECK(job.curve().at(step).loss == point.loss);
  Job stopped;
  const std::string forever = kSave + " --training.steps 100000 --checkpoint.interval 100000";
  const Outcome o = run_command("exec " + mpirun + stopped.train(forever), [&](int group) {
    wait_until(kPatience, [&] { return stopped.last_step() >= 3; });
    ::kill(group, SIGUSR1);  // also when it never came so far: a run that is not stopped goes on for minutes
  });
  INFO(o.output);
  CHECK(o.exit_code == 0);
  CHECK_THAT(o.output, Contains("the same command continues from here"));
  CHECK(stopped.newest_checkpoint() >= 3);
}
#endif
