#include "tests/apps/step/launched_job.h"

// Sequences that are shared by processes, as people start them.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

std::string cp(int degree) { return fmt::format(" --parallelism.context_parallel_degree {}", degree); }

const std::string kLong =
    " --training.seq_len 512 --training.global_batch_size 2 --training.steps 6 --lr_scheduler.decay_ratio 0";

}  // namespace

TEST_CASE("processes that share sequences train as one process does, documents too") {
  const std::string documents = GENERATE("", " --model.attn_mask_type block_causal");
  Job single;
  run(OTTAVA + single.train(kLong + documents));
  for (const std::string& layout : {cp(2), cp(2) + " --parallelism.tensor_parallel_degree 2"}) {
    INFO(layout << documents);
    Job job;
    run(launch(layout == cp(2) ? 2 : 4, job.train(kLong + documents + layout)));
    require_near(job.curve(), single.curve());
  }
}

TEST_CASE("checkpoints and validation do not know who shares a sequence") {
  Job job, whole;
  const std::string data =
      " --validation.enable true --validation.freq 3 --validation.steps 2 --validation.seq_len 512 "
      "--validation.dataset_path " +
      job.in("text.txt");
  run(launch(2, job.train(kLong + kSave + data + cp(2) + " --training.steps 2")));
  run_from(2, OTTAVA + job.train(kLong + kSave + data + " --training.steps 4"));
  run_from(4, launch(2, job.train(kLong + kSave + data + cp(2))));
  run(OTTAVA + whole.train(kLong + data));
  require_near(job.curve(), whole.curve());
  const auto want = validation_losses(whole), got = validation_losses(job);
  REQUIRE(want.size() >= 2);
  for (const auto& [step, loss] : want) CHECK(got.at(step) == Approx(loss).epsilon(1e-5));
}

TEST_CASE("the loss of a whole text does not depend on how many ranks read it, or share it") {
  const auto losses = [](int ranks, const std::string& layout) {
    Job job;
    const std::string command =
        job.train(kLong + layout +
                  " --training.steps 1 --validation.enable true --validation.seq_len 512 "
                  "--validation.local_batch_size 3 --validation.dataset_path " +
                  job.in("text.txt"));
    run(ranks == 1 ? OTTAVA + command : launch(ranks, command));
    return validation_losses(job).at(1);
  };
  const double one = losses(1, "");
  CHECK(losses(2, "") == Approx(one).epsilon(1e-6));
  CHECK(losses(2, cp(2)) == Approx(one).epsilon(1e-6));
}

TEST_CASE("questions are scored alike where sequences are shared") {
  const std::string documents = GENERATE("", " --model.attn_mask_type block_causal");
  Job single;
  run(OTTAVA + single.train(kLong + documents + ask(single, 512)));
  const std::vector<double> want = scores(single);
  REQUIRE(want.size() == 9);  // at steps 1, 3 and 6
  for (const auto& [ranks, layout] :
       {std::pair{2, cp(2)}, std::pair{4, cp(2) + " --parallelism.tensor_parallel_degree 2"}}) {
    INFO(layout << documents);
    Job job;
    run(launch(ranks, job.train(kLong + documents + ask(job, 512) + layout)));
    CHECK(scores(job) == want);
  }
  Job refused;
  const Outcome o = run_command(launch(2, refused.train(kLong + ask(refused, 500) + cp(2))));
  CHECK(o.exit_code != 0);
  CHECK_THAT(o.output, Contains("divides each sequence into 4 chunks, but validation.seq_len 500"));
}

TEST_CASE("a checkpoint of a pipeline goes on where sequences are shared") {
  Job job, whole;
  const std::string deep = kLong + " --model.n_layers 4 --training.global_batch_size 8";
  run(launch(4, job.train(deep + kSave +
                          " --training.steps 2 --training.local_batch_size 8 "
                          "--parallelism.pipeline_parallel_degree 4")));
  run_from(2, OTTAVA + job.train(deep + kSave + " --training.steps 4"));
  run_from(4, launch(2, job.train(deep + kSave + cp(2))));
  run(OTTAVA + whole.train(deep));
  require_near(job.curve(), whole.curve());
}

TEST_CASE("sequences that cannot be shared are refused in one sentence") {
  Job job;
  const auto [options, text] = GENERATE(table<std::string, std::string>(
      {{" --training.seq_len 500",
        "divides each sequence into 4 chunks, but training.seq_len 500 does not give chunks of a multiple of "
        "128 tokens: use a multiple "
        "of "
        "512"},
       {" --parallelism.context_parallel_load_balancer ptrr",
        "ptrr is not supported: sequences are divided head-tail"},
       {" --parallelism.context_parallel_degree 3", "and 2 / 3 is not whole"}}));
  const Outcome o = run_command(launch(2, job.train(kLong + cp(2) + options)));
  INFO(options << "\n" << o.output);
  CHECK(o.exit_code != 0);
  CHECK_THAT(o.output, Contains(text));
}
