#include "apps/config/config.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "apps/config/foreign_keys.h"
#include "apps/config/idle_keys.h"
#include "apps/config/installed.h"
#include "apps/config/outputs.h"
#include "core/config/print.h"
#include "core/config/reader.h"
#include "core/config/section.h"
#include "core/config/source.h"
#include "core/contains.h"
#include "core/data/data_file.h"
#include "core/optim/lr_schedule.h"

namespace ottava {
namespace fs = std::filesystem;
namespace {

config::Section declare_all(Config& c) {
  config::Section root;
  root.section("job", c.job);
  root.section("model", c.model);
  root.section("training", c.training);
  root.section("chat", c.chat);
  root.section("optimizer", c.optimizer);
  root.section("lr_scheduler", c.lr_scheduler);
  root.section("parallelism", c.parallelism);
  root.section("checkpoint", c.checkpoint);
  root.section("activation_checkpoint", c.activation_checkpoint);
  root.section("attention", c.attention);
  root.section("cpu", c.cpu);
  root.section("quantize").section("linear").section("float8", c.float8);
  root.section("metrics", c.metrics);
  root.section("profiling", c.profiling);
  root.section("validation", c.validation);
  root.section("evaluation", c.evaluation);
  root.section("comm", c.comm);
  root.section("debug", c.debug);
  declare_foreign_keys(root);
  return root;
}

/// A level stands for other keys: it fills in those that were not given and refuses those that contradict it.
void apply_precision_level(Config& c, config::Problems& problems) {
  const std::string& level = c.training.mixed_precision_level;
  if (level.empty()) return;
  constexpr std::string_view kParam = "training.mixed_precision_param", kConverters = "model.converters";
  bool wants_float8 = level == "O1";
  DType wanted = level == "O0" ? DType::f32 : DType::bf16;
  if (!problems.given(kParam)) c.training.mixed_precision_param = wanted;
  if (!problems.given(kConverters) && wants_float8) c.model.converters.push_back("quantize.linear.float8");

  DType param = c.training.mixed_precision_param;
  if (param != wanted) {
    problems.add(kParam, "mixed_precision_level {} means {}, but this key is {}; remove one of the two",
                 level, name_of(wanted), name_of(param));
  }
  if (c.model.uses_float8() != wants_float8) {
    problems.add(kConverters,
                 "mixed_precision_level {} means {}, but quantize.linear.float8 is {} this list; remove one "
                 "of the two keys",
                 level, wants_float8 ? "fp8" : name_of(wanted), wants_float8 ? "missing from" : "in");
  }
}

/// Whole conversations share a window, so attention must keep them apart.
void apply_conversations(Config& c, config::Problems& problems) {
  constexpr std::string_view kMask = "model.attn_mask_type";
  if (!reads_chats(c.training)) {
    // Validation computes what training does, and what it reads must not change training.
    if (validates_chats(c.training, c.validation) && c.model.attn_mask_type == ModelConfig::AttnMask::causal)
      problems.add(kMask,
                   "validation reads conversations, and conversations in the same sequence must not attend "
                   "to each other: set block_causal");
    return;
  }
  if (!problems.given(kMask)) c.model.attn_mask_type = ModelConfig::AttnMask::block_causal;
  if (c.model.attn_mask_type == ModelConfig::AttnMask::causal)
    problems.add(kMask,
                 "causal is set, but conversations in the same sequence must not attend to each other: "
                 "remove this key or set block_causal");
}

/// The file or the text says where documents begin; of bare ids only the reader's pieces are known.
void refuse_bare_documents(const Config& c, config::Problems& problems) {
  if (c.model.attn_mask_type != ModelConfig::AttnMask::block_causal) return;
  const std::vector<std::string> formats = formats_of(c.training, c.validation);
  const auto bare = std::ranges::find_if(formats, [](const std::string& name) {
    const std::optional<data::Format> format = data::format_named(name);
    return format && data::is_bare(*format);
  });
  if (bare == formats.end()) return;
  problems.add("model.attn_mask_type",
               "block_causal needs to know where documents begin, which files of format {} do not say: make "
               "shards of the text with ottava data prepare, or set causal",
               *bare);
}

/// TorchTitan's files set the section without the converter, which is the switch; but if a recipe is chosen,
/// it was probably forgotten.
void note_unused_float8(Config& c) {
  if (c.model.uses_float8() || c.float8 == Float8Config{}) return;
  Config::Provenance& p = c.provenance;
  (c.float8.recipe_name == Float8Config{}.recipe_name ? p.notes : p.warnings)
      .push_back(
          "quantize.linear.float8: FP8 is off, because model.converters does not contain "
          "quantize.linear.float8");
}

/// Steps behind the horizon learn at the floor of the decay, which is 0 unless one is given.
void note_short_schedule(Config& c) {
  const std::optional<int64_t>& horizon = c.lr_scheduler.total_steps;
  if (!horizon || *horizon >= c.training.steps || c.training.epochs) return;
  if (decay_steps({.steps = c.training.steps, .schedule = c.lr_scheduler}) == 0) return;
  const double floor = c.lr_scheduler.min_lr_factor * c.optimizer.lr;
  Config::Provenance& p = c.provenance;
  (floor > 0 ? p.notes : p.warnings)
      .push_back(
          fmt::format("lr_scheduler.total_steps {} is less than training.steps {}: after that step the "
                      "learning rate {} (lr_scheduler.min_lr_factor)",
                      *horizon, c.training.steps,
                      floor > 0 ? fmt::format("stays at {:g}", floor) : "is 0 and nothing is learned"));
}

/// Positions that no training sequence has are new to the model, so that what is lost at them says little of
/// the data. Who gave the length wants them.
void warn_of_long_validation(Config& c) {
  Config::Provenance& p = c.provenance;
  if (!c.validation.enable || c.validation.seq_len <= c.training.seq_len) return;
  if (p.origins.contains("validation.seq_len")) return;
  p.warnings.push_back(fmt::format(
      "validation.seq_len is {} by default, but training.seq_len {}: validation has positions that "
      "training never has, at which the loss is higher unless the weights that training begins with know "
      "them; set validation.seq_len to {} to compare the two losses",
      c.validation.seq_len, c.training.seq_len, c.training.seq_len));
}

/// Epochs end at a place in the data, which such a run would move with every start.
void refuse_endless_epochs(const Config& c, config::Problems& problems) {
  const CheckpointConfig& saved = c.checkpoint;
  const auto leaves_out = [&](std::string_view part) { return contains(saved.exclude_from_loading, part); };
  if (!c.training.epochs || !leaves_out("dataloader") || saved.load_only) return;
  if (saved.load_step >= 0 || leaves_out("train_state")) return;
  problems.add("training.epochs",
               "with dataloader in checkpoint.exclude_from_loading every start begins the data anew, so that "
               "epochs never end; set training.steps instead, or begin a branch, which leaves it out only "
               "once: set checkpoint.load_step, or list train_state as well");
}

/// A section with a value that could not be read is not judged, because it has the default in place of what
/// was asked for.
void check_combinations(const Config& c, config::Problems& problems) {
  auto check = [&](std::string_view path, const auto& section) {
    if (problems.sound(path)) validate(section, problems);
  };
  check("model", c.model);
  check("training", c.training);
  check("chat", c.chat);
  check("optimizer", c.optimizer);
  check("parallelism", c.parallelism);
  check("checkpoint", c.checkpoint);
  check("activation_checkpoint", c.activation_checkpoint);
  check("quantize.linear.float8", c.float8);
  check("profiling", c.profiling);
  check("validation", c.validation);
  check("evaluation", c.evaluation);
  check_outputs(c, problems);
  if (problems.sound("training") && problems.sound("checkpoint")) refuse_endless_epochs(c, problems);
  if (!problems.sound("model") || !problems.sound("training")) return;
  const auto fits = [&](const char* key, int64_t tokens) {
    if (!c.model.max_seq_len || tokens <= *c.model.max_seq_len) return;
    problems.add(key, "{} tokens are more than model.max_seq_len {}; lower {} or raise model.max_seq_len",
                 tokens, *c.model.max_seq_len, key);
  };
  fits("training.seq_len", c.training.seq_len);
  if (problems.sound("validation") && problems.sound("evaluation") && c.validates())
    fits("validation.seq_len", c.validation.seq_len);
  // A level has been compared with both keys already.
  if (c.training.mixed_precision_level.empty() && c.model.uses_float8() &&
      c.training.mixed_precision_param != DType::bf16) {
    problems.add("training.mixed_precision_param",
                 "float32 is set, but model.converters asks for FP8, which needs bfloat16 here");
  }
}

}  // namespace

Config load_config(const fs::path& given, const std::vector<std::string>& overrides) {
  const fs::path path = here_or_installed(given);
  Config c;
  config::Problems problems;
  config::Section root = declare_all(c);
  config::Reader reader(root, problems);
  if (!path.empty()) reader.read(config::read_file(path));
  reader.read_overrides(overrides);
  c.provenance.notes = reader.finish();
  if (problems.sound("model") && problems.sound("training")) apply_precision_level(c, problems);
  if (problems.sound("model") && problems.sound("training")) {
    apply_conversations(c, problems);
    refuse_bare_documents(c, problems);
  }
  check_combinations(c, problems);
  problems.throw_if_any(path.empty() ? "the command line" : path.string());
  std::ranges::move(idle_keys(c), std::back_inserter(c.provenance.notes));
  note_unused_float8(c);
  note_short_schedule(c);
  c.provenance.origins = std::move(problems.origins);
  warn_of_long_validation(c);
  c.provenance.file = path;
  return c;
}

std::string notes_text(const Config& config) {
  std::string text;
  for (const std::string& note : config.provenance.notes) text += note + "\n";
  for (const std::string& warning : config.provenance.warnings) text += warning + "\n";
  return text;
}

std::string print_config(const Config& config, bool comments) {
  Config copy = config;  // tables are bound to a mutable instance
  config::Section root = declare_all(copy);
  return config::to_yaml(root, {.comments = comments});
}

std::string config_schema() {
  Config c;
  return config::to_json_schema(declare_all(c), "ottava configuration");
}

std::string config_fates() {
  Config c;
  std::string text =
      "# Configuration keys\n\nThe fate of a key is *used* (it has the effect described, or is checked "
      "where it takes one value only), *noted* (accepted but ignored, with a line in the log), *refused* "
      "(any value but the default is an error) or *renamed* (an old name of the key given).\n\n| key | takes "
      "| default | fate | meaning or reason |\n|---|---|---|---|---|\n";
  for (const config::KeyFate& row : config::fates(declare_all(c))) {
    bool is_renamed = row.fate == "renamed";
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.path, row.type,
                        is_renamed ? "" : "`" + row.fallback + "`", row.fate,
                        is_renamed ? "now called `" + row.text + "`" : row.text);
  }
  return text;
}

}  // namespace ottava
