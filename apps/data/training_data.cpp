#include "apps/data/training_data.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "apps/config/outputs.h"
#include "apps/data/chat_data.h"
#include "apps/devices/available_memory.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text/counted.h"
#include "core/text/gib.h"
#include "parallel/checkpoint/patient_ranks.h"
#include "parallel/comm/agree.h"
#include "parallel/comm/patience.h"

namespace ottava {
namespace {

struct Text {
  std::string_view key;  ///< of the configuration
  const std::vector<std::string>& paths;
  const DataloaderConfig& workers;
  int64_t sequence;
  data::Order order;
};

/// `format` as training.format has it.
void read_as(const Experiment& e, const std::string& format, data::LoaderOptions& options) {
  options.format = data::format_named(format);
  options.encoder.chat = chat_encoder(e, format);
}

data::LoaderOptions loader_options(const Experiment& e, const RankGroups& ranks, const Text& text) {
  const TrainingConfig& t = e.config.training;
  data::LoaderOptions options;
  for (const std::string& path : text.paths)
    options.sources.push_back(find_input(e.config, text.key, path).string());
  options.leaves_out = own_outputs(e.config);
  options.text_key = t.text_key;
  options.bad_records =
      t.bad_records == TrainingConfig::BadRecords::skip ? data::BadRecords::skip : data::BadRecords::error;
  options.encoder = data::make_text_encoder(e.tokenizer, {.bos = t.add_bos, .eos = t.add_eos});
  read_as(e, t.format, options);
  options.seq_len = text.sequence;
  options.seed = static_cast<uint64_t>(t.seed);
  options.order = text.order;
  options.index_folder = e.config.job.in_dump_folder("data_index");
  options.index_access =
      ranks.is_first() && e.keeps_data_index ? data::IndexAccess::read_write : data::IndexAccess::read_only;
  if (text.workers.num_workers > 0) options.threads = static_cast<int>(text.workers.num_workers);
  if (text.workers.prefetch_factor) options.prefetch = static_cast<int>(*text.workers.prefetch_factor);
  return options;
}

// Each rank reads what is on its own machine, but tensor, context and pipeline parallel ranks must read the
// same samples.
void require_same_data(std::string_view key, const std::string& name, const data::TokenLoader& loader,
                       Communicator& control) {
  require_equal_everywhere(control,
                           fmt::format("the data of {}{}", key, name.empty() ? "" : " (" + name + ")"),
                           loader.fingerprint());
}

// A format that marks documents by a token means that of one tokenizer.
void require_documents(const Experiment& e, const data::TokenLoader& loader, Communicator& control) {
  if (!e.shape.block_causal) return;
  const std::optional<int32_t> bos = e.tokenizer->bos_id(), eos = e.tokenizer->eos_id();
  const auto text = [](std::optional<int32_t> id) { return id ? std::to_string(*id) : "none"; };
  // As of Hugging Face's gpt2, whose files leave it to a class of transformers.
  const std::string_view name_it =
      bos || eos ? ""
                 : "name that token bos_token in tokenizer_config.json if it begins documents here too, ";
  for (const auto& [path, id] : loader.corpus().first_tokens()) {
    if (id == bos || id == eos) continue;
    meet_before_refusing(control);  // all ranks have this file
    fail<DataError>("data",
                    "'{}' has llm.c's format, in which token {} begins every document, but this tokenizer's "
                    "BOS is {} and its EOS {}, so that model.attn_mask_type block_causal cannot know them: "
                    "{}make shards of the text with ottava data prepare, or set causal",
                    path, id, text(bos), text(eos), name_it);
  }
}

void check_data(const Experiment& e, std::string_view key, const std::string& name,
                const data::TokenLoader& loader, Communicator& control) {
  require_same_data(key, name, loader, control);
  require_documents(e, loader, control);
}

// Windows of each source, counted by rank 0.
std::vector<double> windows_of(const std::vector<data::MixedLoader::Source>& sources, Communicator& control) {
  std::vector<double> windows(sources.size());
  checkpoint::PatientRanks(control).on_rank_0(
      [&] { std::ranges::transform(sources, windows.begin(), count_windows); });
  reduce_on_host(control, view_of(windows.data(), {std::ssize(windows)}), "windows of the data");
  return windows;
}

// Weights that show each source as often as its `repeat` says, or once without it.
std::vector<double> weights_by_size(const std::vector<MixtureSourceConfig>& config,
                                    const std::vector<data::MixedLoader::Source>& sources,
                                    Communicator& control) {
  std::vector<double> weights = windows_of(sources, control);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] *= config[i].repeat.value_or(1);
  return weights;
}

struct WeightsAfterStep {
  int64_t step = 0;
  std::vector<double> values;
};

// What the configuration asks for in the whole run, in the order of its steps.
std::vector<WeightsAfterStep> configured_weights(const TrainingConfig& t,
                                                 const std::vector<data::MixedLoader::Source>& sources,
                                                 Communicator& control) {
  std::vector<double> first;
  for (const MixtureSourceConfig& source : t.mixture)
    if (source.weight) first.push_back(*source.weight);
  if (first.empty()) first = weights_by_size(t.mixture, sources, control);
  std::vector<WeightsAfterStep> given{{0, std::move(first)}};
  for (const MixtureStageConfig& stage : t.mixture_stages)
    given.push_back({stage.from_step - 1, stage.numbers()});
  return given;
}

BatchSource::Options batches_of(const Experiment& e, const RankGroups& ranks, int64_t batch,
                                int64_t micro_batches) {
  return {.batch = batch,
          .micro_batches = micro_batches,
          .data_rank = ranks.data_rank,
          .data_size = ranks.data_size,
          .documents = e.shape.block_causal,
          .context_rank = ranks.context_parallel.rank(),
          .context_size = ranks.context_parallel.size()};
}

// Tokens are no part of the plan: they are there before it.
void require_memory_for(const BatchSource::Options& batches, int64_t sequence, int64_t sets,
                        std::string_view lower, Communicator& control) {
  const int64_t needed = sets * BatchSource::bytes(batches, sequence),
                available = memory_for_rank({DeviceType::cpu, 0}, control);
  std::string complaint;
  if (needed > available)
    complaint = fmt::format(
        "the tokens of {} of {} need {:.2f} GiB of host memory, but only {:.2f} GiB are free for this rank: "
        "lower {}",
        counted(sets * batches.batch * batches.micro_batches, "sequence"), counted(sequence, "token"),
        gib(needed), gib(available), lower);
  refuse_together<MemoryError>(control, "memory", complaint);
}

}  // namespace

int64_t count_windows(const data::MixedLoader::Source& source) {
  if (!source.loader->samples_per_epoch())
    log::info("Counting the windows of {} (data_index in job.dump_folder keeps what training counts)",
              source.name.empty() ? "the data" : source.name);
  return source.loader->count_samples();
}

data::MixedLoader open_training_data(const Experiment& e, RankGroups& ranks) {
  const TrainingConfig& t = e.config.training;
  const Patience patience(*ranks.control);  // one rank's files may have to be looked for several times
  const data::Order order = t.shuffle ? data::Order::shuffled : data::Order::sequential;
  const auto options = [&](std::string_view key, const std::vector<std::string>& paths) {
    return loader_options(e, ranks, {key, paths, t.dataloader, e.shape.sequence, order});
  };
  if (t.mixture.empty()) {
    data::MixedLoader only(options("training.dataset_path", t.dataset_path));
    check_data(e, "training.dataset_path", "", *only.sources()[0].loader, *ranks.control);
    return only;
  }
  std::vector<data::MixedLoader::Source> sources;
  for (const MixtureSourceConfig& source : t.mixture) {
    data::LoaderOptions own = options("training.mixture", source.path);
    if (source.format) read_as(e, *source.format, own);
    if (source.text_key) own.text_key = *source.text_key;
    sources.push_back({source.name, std::make_unique<data::TokenLoader>(std::move(own))});
    check_data(e, "training.mixture", source.name, *sources.back().loader, *ranks.control);
  }
  const std::vector<double> equal(sources.size(), 1);
  data::MixedLoader mixed(
      std::move(sources),
      data::Mixture(std::vector<data::Mixture::Stage>{{.from_sample = 0, .weights = equal}}));
  mixed.set_mixture(mixture_from(e, mixed, ranks, {}));
  return mixed;
}

data::Mixture mixture_from(const Experiment& e, const data::MixedLoader& data, RankGroups& ranks,
                           const TrainingState& from) {
  const std::vector<WeightsAfterStep> given =
      configured_weights(e.config.training, data.sources(), *ranks.control);
  const auto to_come =
      std::ranges::find_if(given, [&](const auto& weights) { return weights.step >= from.step; });
  std::vector<data::Mixture::Stage> stages;
  const auto add = [&](int64_t from_sample, const std::vector<double>& of_stage) {
    if (!stages.empty() && stages.back().from_sample == from_sample) stages.pop_back();
    stages.push_back({.from_sample = from_sample, .weights = of_stage});
  };
  const std::vector<data::Mixture::Begun> begun = data.begun_in(from.mixture);
  const auto past = to_come - given.begin();
  if (begun.empty() && past > 0) add(0, given[past - 1].values);
  // Those of the configuration are the last that have begun; check_data_unchanged() compares them.
  for (int64_t i = 0; i < std::ssize(begun); ++i) {
    const int64_t k = past - std::ssize(begun) + i;
    add(begun[i].from_sample,
        k >= 0 ? given[k].values : std::vector<double>(begun[i].quotas.begin(), begun[i].quotas.end()));
  }
  for (auto stage = to_come; stage != given.end(); ++stage) {
    const int64_t steps = stage->step - from.step;
    const bool goes_on = steps == 0 && !begun.empty() && from.step == 0 &&
                         data::MixtureTable(stage->values).quotas() == begun.back().quotas;
    if (!goes_on) add(stages.empty() ? 0 : from.data_position + steps * e.global_batch, stage->values);
  }
  return data::Mixture(stages);
}

int64_t last_step_of_epochs(const Experiment& e, const data::MixedLoader& data, RankGroups& ranks,
                            const TrainingState& from) {
  const TrainingConfig& t = e.config.training;
  const std::vector<double> windows = t.mixture.empty()
                                          ? windows_of(data.sources(), *ranks.control)
                                          : weights_by_size(t.mixture, data.sources(), *ranks.control);
  const double epoch = std::accumulate(windows.begin(), windows.end(), 0.0),
               left = *t.epochs * epoch - static_cast<double>(from.data_position),
               begun = std::ceil(left / e.global_batch - 1e-9),
               steps = from.data_position == 0 ? std::max(begun, 1.0) : begun, last = from.step + steps;
  const std::string sequences = counted(e.global_batch, "sequence"),
                    windows_text = counted(std::llround(epoch), "window"),
                    passes = fmt::format("{:g} {} of {}", *t.epochs, *t.epochs == 1 ? "epoch" : "epochs",
                                         windows_text);
  if (!(last <= kMostSteps)) {
    meet_before_refusing(*ranks.control);
    fail<ConfigError>("training.epochs", "{} are {:.3g} steps of {}; expected at most {}", passes, last,
                      sequences, kMostSteps);
  }
  if (steps > 0) {
    const int64_t count = static_cast<int64_t>(steps);
    log::info("training.epochs {}: {}{} of {}, with {} in an epoch", *t.epochs, counted(count, "step"),
              from.step > 0 ? fmt::format(" after step {}", from.step) : "", sequences, windows_text);
    return from.step + count;
  }
  if (from.step == 0) {
    meet_before_refusing(*ranks.control);
    fail<ConfigError>("training.epochs",
                      "{} end before sample {}, where the data of the checkpoint goes on: raise it, or add "
                      "dataloader to checkpoint.exclude_from_loading",
                      passes, from.data_position);
  }
  // Behind the end, steps are as long as the last one.
  const int64_t before = from.sequences_per_step > 0 ? from.sequences_per_step : e.global_batch;
  return std::max<int64_t>(from.step + static_cast<int64_t>(std::ceil(left / before - 1e-9)), 1);
}

BatchSource::Options training_batches(const Experiment& e, const RankGroups& ranks) {
  const BatchSource::Options batches = batches_of(e, ranks, e.shape.batch, e.shape.micro_batches);
  require_memory_for(batches, e.shape.sequence, 1,
                     "training.global_batch_size, training.local_batch_size or training.seq_len, or use more "
                     "data-parallel ranks",
                     *ranks.control);
  return batches;
}

std::vector<ValidationSet> open_validation_data(const Experiment& e, const RankGroups& ranks) {
  const ValidationConfig& v = e.config.validation;
  std::vector<ValidationSet> sets;
  if (!v.enable) return sets;
  const Patience patience(*ranks.control);
  const BatchSource::Options batches = batches_of(e, ranks, e.shape.validation_batch, 1);
  require_memory_for(batches, e.shape.validation_sequence, std::max<int64_t>(std::ssize(v.datasets), 1),
                     "validation.local_batch_size or validation.seq_len", *ranks.control);
  const auto open = [&](std::string_view key, const ValidationSetConfig& set) {
    data::LoaderOptions options = loader_options(
        e, ranks, {key, set.path, v.dataloader, e.shape.validation_sequence, data::Order::sequential});
    options.seq_len_key = "validation.seq_len";
    if (set.format) read_as(e, *set.format, options);
    if (set.text_key) options.text_key = *set.text_key;
    data::MixedLoader loader(std::move(options));
    check_data(e, key, set.name, *loader.sources()[0].loader, *ranks.control);
    sets.push_back({set.name, set.path, std::make_unique<BatchSource>(std::move(loader), batches)});
  };
  for (const ValidationSetConfig& set : v.datasets) open("validation.datasets", set);
  if (sets.empty()) {
    ValidationSetConfig only;
    only.path = v.dataset_path;
    open("validation.dataset_path", only);
  }
  return sets;
}

}  // namespace ottava
