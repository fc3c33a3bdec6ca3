#include <filesystem>
#include <fstream>

#include "core/cpu/bf16_products.h"
#include "core/io/file.h"
#include "core/log.h"
#include "core/threads/parallel_for.h"
#include "parallel/checkpoint/folder.h"
#include "tests/apps/train/training_runs.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

// Runs that begin from a checkpoint: their own, another run's, parts of one, a broken one.

using namespace ottava;
using namespace ottava::test;
namespace fs = std::filesystem;

namespace {

struct Variant {
  const char* name;
  Overrides overrides;
};

}  // namespace

TEST_CASE("a run that goes on with another number of threads is told that its sums differ") {
  TinyTraining tiny;
  const auto said = [&](int threads, const std::string& steps, const Overrides& more = {}) {
    set_parallel_threads(threads);
    const CapturedOutput log;
    tiny.start("run", kSaving + Overrides{"--training.steps", steps} + more)->run();
    return log.text();
  };
  const std::string told = "continues with 2 threads, but its checkpoint was made with 1";
  CHECK_FALSE(has(said(1, "3"), "threads"));
  CHECK_FALSE(has(said(1, "6"), "threads"));
  CHECK(has(said(2, "9"), told));
  CHECK_FALSE(has(said(2, "12"), "threads"));
  const Overrides bf16{"--training.mixed_precision_param", "bfloat16"},
      widened{"--cpu.bf16_matmul", "widened", "--cpu.bf16_attention", "widened"},
      direct{"--cpu.bf16_attention", "direct"};
  CHECK_FALSE(has(said(1, "15", bf16 + widened), "threads"));
  if (cpu::multiplies_bf16_directly()) {
    CHECK_FALSE(has(said(1, "16", bf16 + direct), "threads"));
    CHECK(has(said(2, "17", bf16 + direct), told));
  }
  set_parallel_threads(1);
}

TEST_CASE("a run says that its text changed where no sample of it lies, and nothing of a copy") {
  TinyTraining tiny;
  const auto said = [&](const std::string& steps) {
    const CapturedOutput log;
    tiny.start("run", kSaving + Overrides{"--training.steps", steps})->run();
    return log.text();
  };
  said("3");
  fs::copy_file(tiny.text_path(), tiny / "copy.txt");
  fs::rename(tiny / "copy.txt", tiny.text_path());
  CHECK_FALSE(has(said("4"), "checkpoint"));
  std::string text = read_file(tiny.text_path());
  REQUIRE(text.size() > 40'000);
  text[text.size() / 4] ^= 1;
  std::ofstream(tiny.text_path()) << text;
  CHECK(has(said("5"), "the training data differs from that of the checkpoint in a few places"));
  CHECK_FALSE(has(said("6"), "the training data"));
}

TEST_CASE("a resumed run is bitwise the uninterrupted one") {
  TinyTraining tiny;
  std::ofstream(tiny / "v.txt") << generated_text(12, 7);
  const Overrides bf16{"--training.mixed_precision_param", "bfloat16"};
  const Overrides accumulate{"--training.global_batch_size", "4"};
  const std::vector<Variant> variants{
      {"f32", {}},
      {"bf16, accumulating", bf16 + accumulate},
      {"f32, full recomputation, accumulating",
       accumulate + Overrides{"--activation_checkpoint.mode", "full"}},
      {"bf16, every second block, saving in the background",
       bf16 + Overrides{"--activation_checkpoint.mode", "selective", "--checkpoint.async_mode", "async"}},
      {"bf16, cheap operations, dynamic loss scale",
       bf16 + Overrides{"--activation_checkpoint.mode", "selective",
                        "--activation_checkpoint.selective_ac_option", "op", "--training.loss_scale",
                        "dynamic"}},
      {"bf16 moments, saving in the background",
       bf16 + Overrides{"--optimizer.state_dtype", "bfloat16", "--checkpoint.async_mode",
                        "async_with_pinned_mem"}},
      {"validation, block-causal",
       {"--validation.enable", "true", "--validation.dataset_path", tiny / "v.txt", "--validation.freq", "2",
        "--validation.seq_len", "24", "--validation.local_batch_size", "1", "--model.attn_mask_type",
        "block_causal"}},
  };
  for (const Variant& variant : variants) {
    INFO(variant.name);
    const std::string whole = std::string("whole ") + variant.name,
                      resumed = std::string("resumed ") + variant.name;
    const Everything expected = finish(tiny, whole, variant.overrides);
    // A run that saves computes the same; what is left of its folder is that of a run that died after step 3
    // or 6.
    CHECK((finish(tiny, resumed, variant.overrides + kSaving) == expected));
    const std::vector<double> losses = logged(tiny / whole, "loss_metrics/global_avg_loss"),
                              norms = logged(tiny / whole, "grad_norm"), rates = logged(tiny / whole, "lr"),
                              validation = logged(tiny / whole, "validation_metrics/loss");
    CHECK(losses.size() == 8);
    CHECK(validation.size() == (has(variant.name, "validation") ? 5u : 0u));  // steps 1, 2, 4, 6, 8
    CHECK(losses[0] == Approx(std::log(2256) + 0.5).margin(0.3));
    for (int saved : {6, 3}) {
      INFO("from step " << saved);
      for (int later = saved + 1; later <= 8; ++later)
        fs::remove_all(tiny / (resumed + "/checkpoint/step-" + std::to_string(later)));
      CHECK((finish(tiny, resumed, variant.overrides + kSaving, saved) == expected));
      CHECK((logged(tiny / resumed, "loss_metrics/global_avg_loss") == losses));
      CHECK((logged(tiny / resumed, "grad_norm") == norms));
      CHECK((logged(tiny / resumed, "lr") == rates));
      CHECK((logged(tiny / resumed, "validation_metrics/loss") == validation));
    }
  }
}

TEST_CASE("a checkpoint starts another run, bit for bit, as weights or as a whole run") {
  TinyTraining tiny;
  const Everything trained = finish(tiny, "first", kSaving);
  const std::string saved = tiny / "first/checkpoint/step-8";
  const size_t per_parameter = 4;  // master, exp_avg, exp_avg_sq, compute
  TinyTraining::Run weights = tiny.start("weights", {"--checkpoint.initial_load_path", saved});
  Everything loaded = everything_of(*weights.trainer);
  CHECK(loaded.state.step == 0);
  for (size_t i = 0; i < loaded.tensors.size(); ++i) {
    const bool is_moment = i % per_parameter == 1 || i % per_parameter == 2;
    if (!is_moment) CHECK((loaded.tensors[i] == trained.tensors[i]));
    if (is_moment) CHECK((loaded.tensors[i] == std::vector<uint8_t>(loaded.tensors[i].size(), 0)));
  }
  // Of a run's folder, and of the folder of its checkpoints, it is the newest.
  for (const char* folder : {"first", "first/checkpoint"}) {
    INFO(folder);
    const CapturedOutput log;
    log::set_level(log::Level::info);
    TinyTraining::Run newest = tiny.start("newest", {"--checkpoint.initial_load_path", tiny / folder});
    log::set_level(log::Level::warning);
    CHECK((everything_of(*newest.trainer).tensors == loaded.tensors));
    CHECK(has(log.text(), "Loaded the weights of " + saved));
  }
  const Overrides as_run{"--checkpoint.initial_load_path", saved, "--checkpoint.initial_load_model_only",
                         "false"};
  CHECK(has(message_of([&] { tiny.start("at its end", as_run); }),
            "step-8 is at step 8, but the run ends at training.steps 8"));
  TinyTraining::Run whole = tiny.start("whole", as_run + Overrides{"--training.steps", "9"});
  CHECK((everything_of(*whole.trainer) == trained));

  // The folder is a Hugging Face model: its config.json gives the shape.
  Config c = tiny.config("hf", {"--checkpoint.initial_load_path", saved});
  c.model = {};
  c.model.flavor = "hf";
  c.model.hf_assets_path = saved;
  RankGroups ranks = solo_rank_groups();
  Trainer from_config(resolve_experiment(c, load_tokenizer(c), 1), ranks, {DeviceType::cpu, 0}, nullptr);
  CHECK((everything_of(from_config).tensors == loaded.tensors));

  // An export in bf16 holds the weights rounded.
  finish(tiny, "export",
         {"--checkpoint.enable", "true", "--checkpoint.last_save_model_only", "true",
          "--checkpoint.export_dtype", "bfloat16"});
  TinyTraining::Run rounded =
      tiny.start("rounded", {"--checkpoint.initial_load_path", tiny / "export/checkpoint/step-8"});
  const auto* exact = reinterpret_cast<const float*>(trained.tensors[0].data());
  for (size_t i = 0; i < 100; ++i)
    CHECK(master(*rounded.trainer, 0)[i] == static_cast<float>(bf16(exact[i])));
}

TEST_CASE(
    "a last step that float16 cannot represent is saved in float32 before the run ends with the error") {
  TinyTraining tiny;
  const Overrides exporting = kSaving + Overrides{"--checkpoint.last_save_model_only", "true",
                                                  "--checkpoint.export_dtype", "float16"};
  const CapturedOutput log;
  TinyTraining::Run run = tiny.start("run", exporting);
  master(*run.trainer, 0)[5] = 70000;
  CHECK(has(message_of([&] { run->run(); }), "but the largest float16 number is 65504"));
  CHECK(has(log.text(), "the checkpoint of step 8 is saved in float32, with the optimizer's state"));
  CHECK((everything_of(*tiny.start("run", kSaving).trainer) == everything_of(*run.trainer)));
}

TEST_CASE("exclude_from_loading starts exactly the named part afresh") {
  TinyTraining tiny;
  const Overrides dynamic = kSaving + Overrides{"--training.loss_scale", "dynamic"};
  finish(tiny, "run", dynamic);
  const Everything saved = everything_of(*tiny.start("run", dynamic).trainer);
  auto without = [&](const char* part) {
    return everything_of(
        *tiny.start("run", dynamic + Overrides{"--checkpoint.exclude_from_loading", part}).trainer);
  };
  CHECK(saved.state.loss_scale->good_steps == 8);

  Everything optimizer = without("optimizer");
  CHECK(optimizer.state.optimizer_step == 0);
  CHECK(optimizer.state.loss_scale->good_steps == 0);
  CHECK(optimizer.tensors[0] == saved.tensors[0]);
  CHECK(optimizer.tensors[1] == std::vector<uint8_t>(optimizer.tensors[1].size(), 0));
  optimizer.state.optimizer_step = 8;
  optimizer.state.loss_scale = saved.state.loss_scale;
  CHECK((optimizer.state == saved.state));

  Everything schedule = without("lr_scheduler");
  CHECK(schedule.state.schedule_step == 0);
  schedule.state.schedule_step = 8;
  CHECK((schedule == saved));

  Everything data = without("dataloader");
  CHECK(data.state.data_position == 0);
  data.state.data_position = saved.state.data_position;
  CHECK((data == saved));

  Everything counts = without("train_state");
  CHECK(counts.state.step == 0);
  CHECK(counts.state.tokens_seen == 0);
  CHECK(counts.state.branch == "the newest, without train_state");
  counts.state.branch.clear();
  counts.state.step = 8;
  counts.state.tokens_seen = saved.state.tokens_seen;
  CHECK((counts == saved));

  CHECK(has(message_of([&] { without("model"); }),
            "model is not supported: a run cannot continue without the weights of its checkpoint"));
}

TEST_CASE("checkpoints keep the tokenizer that the run began with, whatever becomes of its folder") {
  TinyTraining tiny;
  const std::string shipped = OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256", own = tiny / "tokenizer";
  fs::copy(shipped, own);
  const Overrides saving = kSaving + Overrides{"--model.hf_assets_path", own};
  TinyTraining::Run run = tiny.start("run", saving);
  SECTION("replaced") { std::ofstream(own + "/tokenizer.json") << "{}"; }
  SECTION("gone") { fs::remove_all(own); }
  CHECK(run->run() == Trainer::End::completed);
  for (const char* step : {"step-3", "step-8"}) {
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
      CHECK(read_file(tiny / ("run/checkpoint/" + std::string(step) + "/" + name)) ==
            read_file(shipped + "/" + name));
    }
  }
}

TEST_CASE("keep_latest_k keeps the newest, a broken checkpoint is passed over by name") {
  TinyTraining tiny;
  const Overrides saving =
      kSaving + Overrides{"--checkpoint.interval", "2", "--checkpoint.keep_latest_k", "2"};
  const Everything expected = finish(tiny, "run", saving);
  std::vector<int64_t> steps;
  for (const checkpoint::SavedStep& s : checkpoint::list_steps(tiny / "run/checkpoint"))
    steps.push_back(s.step);
  CHECK((steps == std::vector<int64_t>{6, 8}));
  const std::string weights = tiny / "run/checkpoint/step-8/model.safetensors";
  fs::resize_file(weights, fs::file_size(weights) / 2);
  const CapturedOutput log;
  TinyTraining::Run run = tiny.start("run", saving);
  CHECK(run->state().step == 6);
  CHECK(has(log.text(), "step-8 is broken and skipped"));
  run->run();
  CHECK((everything_of(*run.trainer) == expected));
  CHECK(has(message_of([&] {
              tiny.start("run", saving + Overrides{"--checkpoint.load_step", "5"});
            }),
            "step-5 does not exist"));
  CHECK(tiny.start("run", saving + Overrides{"--checkpoint.load_step", "6"})->state().step == 6);
}

TEST_CASE("a checkpoint whose config.json is damaged is broken, not one of another model") {
  TinyTraining tiny;
  const Everything expected = finish(tiny, "run", kSaving);
  const std::string path = tiny / "run/checkpoint/step-8/config.json";
  std::string text = read_file(path);
  const size_t at = text.find("\"rope_theta\": 5");
  REQUIRE(at != std::string::npos);
  text[at + std::string_view("\"rope_theta\": ").size()] = '7';
  write_file_synced(path, text);
  const CapturedOutput log;
  TinyTraining::Run run = tiny.start("run", kSaving);
  CHECK(run->state().step == 6);
  CHECK(has(log.text(), "step-8 is broken and skipped"));
  CHECK(has(log.text(), "config.json: its content has changed since it was saved"));
  run->run();
  CHECK((everything_of(*run.trainer) == expected));
}

TEST_CASE("a run that goes on with other batches is told of them") {
  TinyTraining tiny;
  const auto said = [&](const std::string& run, int ranks, const std::string& steps,
                        const Overrides& more = {}) {
    const Config c = tiny.config(
        run,
        kSaving +
            Overrides{"--training.steps", steps, "--validation.enable", "true", "--validation.dataset_path",
                      tiny.text_path(), "--validation.steps", "1", "--validation.seq_len", "16",
                      "--parallelism.data_parallel_replicate_degree", std::to_string(ranks)} +
            more);
    const CapturedOutput log;
    run_thread_ranks({.ranks = ranks}, [&](Communicator& world) {
      const Experiment e = resolve_experiment(c, load_tokenizer(c), ranks);
      RankGroups groups = groups_over(world, e.mesh);
      Trainer(e, groups, {DeviceType::cpu, 0}, nullptr).run();
    });
    return log.text();
  };
  const std::string batches =
                        "continues with 4 sequences per step on 2 ranks, but its checkpoint was made with 2 "
                        "on 1 rank: training.global_batch_size 2 keeps",
                    validation =
                        "validation on 2 ranks may read another part than the checkpoint's run did on 1";
  CHECK_FALSE(has(said("run", 1, "3"), "sequence"));
  CHECK_FALSE(has(said("run", 1, "4"), "sequence"));
  const std::string more = said("run", 2, "6");
  CHECK(has(more, batches));
  CHECK(more.find(batches) == more.rfind(batches));
  CHECK(has(more, validation));
  CHECK_FALSE(has(said("run", 2, "9"), "sequences per step"));
  said("same", 1, "3");
  const std::string same =
      said("same", 2, "6", {"--training.global_batch_size", "2", "--training.local_batch_size", "1"});
  CHECK_FALSE(has(same, "sequences per step"));
  CHECK(has(same, validation));
}
