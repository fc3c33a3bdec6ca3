#pragma once

#include <fstream>
#include <map>
#include <random>
#include <string>

#include "core/io/json.h"
#include "parallel/checkpoint/folder.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_training.h"

namespace ottava::test {

/// Loss and gradient norm of a step, as metrics.jsonl has them.
struct Point {
  double loss, grad_norm;
};
using Curve = std::map<int64_t, Point>;

/// `count` words of the job's text, drawn one by one.
inline std::string drawn_words(std::mt19937& random, int count) {
  const char* words[] = {"the", "octave", "above", "is",    "played", "with",
                         "one", "hand",   "and",   "heard", "by",     "nobody"};
  std::string text;
  for (int i = 0; i < count; ++i) text += (i > 0 ? " " : "") + std::string(words[random() % 12]);
  return text;
}

/// A folder with text and a configuration for a model of 160,000 parameters: 12 steps, no checkpoints.
class Job {
 public:
  Job() {
    std::mt19937 random(5);
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 20000; ++i) text << drawn_words(random, 1) << (i % 60 == 59 ? "\n\n" : " ");
    std::ofstream(file()) << "job: {dump_folder: " << out() << "}\n"
                          << "model: {flavor: debugmodel, hf_assets_path: " << OTTAVA_SOURCE_DIR
                          << "/configs/tokenizers/en-2256, "
                          << "dim: 32, n_layers: 2, n_heads: 4, n_kv_heads: 2, ffn_dim: 48}\n"
                          << "training: {dataset_path: " << folder_ / "text.txt"
                          << ", seq_len: 16, local_batch_size: 1, "
                          << "global_batch_size: 8, steps: 12"
                          << ", mixed_precision_param: float32, threads: 1}\n"
                          << "optimizer: {lr: 2.0e-3}\n"
                          << "lr_scheduler: {warmup_steps: 0}\n"
                          << "checkpoint: {interval: 4, last_save_model_only: false, keep_latest_k: 0}\n"
                          << "metrics: {log_freq: 1}\n"
                          << "comm: {init_timeout_seconds: 200, train_timeout_seconds: 200}\n";
  }

  std::string file() const { return folder_ / "job.yaml"; }
  std::string out() const { return folder_ / "out"; }
  std::string in(const std::string& name) const { return folder_ / name; }
  /// The command, for the program or its launcher.
  std::string train(const std::string& options = "") const { return " train " + file() + " " + options; }
  std::string checkpoints() const { return out() + "/checkpoint"; }

  Curve curve() const {
    Curve out_curve;
    for (const Json& json : logged_lines(out())) {
      if (!json.find("grad_norm")) continue;
      out_curve[json.at("step", "metrics").as_integer("step")] = {
          json.at("loss_metrics/global_avg_loss", "metrics").as_number("loss"),
          json.at("grad_norm", "metrics").as_number("norm")};
    }
    return out_curve;
  }
  int64_t last_step() const { return curve().empty() ? 0 : curve().rbegin()->first; }
  int64_t newest_checkpoint() const {
    const auto steps = checkpoint::list_steps(checkpoints());
    return steps.empty() ? 0 : steps.back().step;
  }

 private:
  TemporaryFolder folder_;
};

inline const std::string kSave = " --checkpoint.enable true";

}  // namespace ottava::test
