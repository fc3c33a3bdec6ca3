#include "apps/train/training_data.h"

#include <charconv>
#include <filesystem>
#include <utility>

#include "core/counted.h"
#include "core/error.h"
#include "core/log.h"
#include "parallel/checkpoint/rank_group.h"

namespace ottava {
namespace {

struct Text {
  std::string_view key;  ///< of the configuration
  const std::vector<std::string>& paths;
  const DataloaderConfig& workers;
  int64_t sequence;
  data::Order order;
};

data::LoaderOptions loader_options(const Experiment& e, const RankGroups& ranks, const Text& text) {
  const TrainingConfig& t = e.config.training;
  data::LoaderOptions options;
  for (const std::string& path : text.paths)
    options.sources.push_back(find_input(e.config, text.key, path).string());
  options.format = data::format_named(t.format);
  options.text_key = t.text_key;
  options.bad_records =
      t.bad_records == TrainingConfig::BadRecords::skip ? data::BadRecords::skip : data::BadRecords::error;
  options.encoder = data::make_text_encoder(e.tokenizer, {.bos = t.add_bos, .eos = t.add_eos});
  options.seq_len = text.sequence;
  options.seed = static_cast<uint64_t>(t.seed);
  options.order = text.order;
  options.index_folder = (std::filesystem::path(e.config.job.dump_folder) / "data_index").string();
  options.index_access =
      ranks.world->rank() == 0 ? data::IndexAccess::read_write : data::IndexAccess::read_only;
  if (text.workers.num_workers > 0) options.threads = static_cast<int>(text.workers.num_workers);
  if (text.workers.prefetch_factor) options.prefetch = static_cast<int>(*text.workers.prefetch_factor);
  return options;
}

// Weights that show each source as often as its `repeat` says; without any, once.
std::vector<double> weights_by_size(const std::vector<MixtureSourceConfig>& config,
                                    const std::vector<data::MixedLoader::Source>& sources,
                                    Communicator& control) {
  checkpoint::RankGroup group(control);
  std::string counts;
  group.on_rank_0([&] {
    for (const data::MixedLoader::Source& source : sources) {
      if (!source.loader->samples_per_epoch())
        log::info("Counting the windows of {} (once: data_index in job.dump_folder keeps the result)",
                  source.name);
      counts += fmt::format("{} ", source.loader->count_samples());
    }
  });
  const std::string shared = group.all_gather(counts)[0];
  std::vector<double> weights;
  const char* at = shared.data();
  for (const MixtureSourceConfig& source : config) {
    int64_t count = 0;
    at = std::from_chars(at, shared.data() + shared.size(), count).ptr + 1;
    weights.push_back(source.repeat.value_or(1) * static_cast<double>(count));
  }
  return weights;
}

}  // namespace

data::MixedLoader open_training_data(const Experiment& e, RankGroups& ranks) {
  const TrainingConfig& t = e.config.training;
  const data::Order order = t.shuffle ? data::Order::shuffled : data::Order::sequential;
  const auto options = [&](std::string_view key, const std::vector<std::string>& paths) {
    return loader_options(e, ranks, {key, paths, t.dataloader, e.shape.sequence, order});
  };
  if (t.mixture.empty()) return data::MixedLoader(options("training.dataset_path", t.dataset_path));
  std::vector<data::MixedLoader::Source> sources;
  std::vector<double> weights;
  for (const MixtureSourceConfig& source : t.mixture) {
    data::LoaderOptions own = options("training.mixture", source.path);
    own.format = data::format_named(source.format);
    own.text_key = source.text_key;
    sources.push_back({source.name, std::make_unique<data::TokenLoader>(std::move(own))});
    if (source.weight) weights.push_back(*source.weight);
  }
  if (weights.empty()) weights = weights_by_size(t.mixture, sources, *ranks.control);
  std::vector<data::Mixture::Stage> stages{{.from_sample = 0, .weights = std::move(weights)}};
  for (const MixtureStageConfig& stage : t.mixture_stages)
    stages.push_back({.from_sample = (stage.from_step - 1) * e.global_batch, .weights = stage.numbers()});
  return data::MixedLoader(std::move(sources), data::Mixture(stages));
}

BatchSource::Options training_batches(const Experiment& e, const RankGroups& ranks) {
  return {.batch = e.shape.batch,
          .micro_batches = e.shape.micro_batches,
          .data_rank = ranks.data_rank,
          .data_size = ranks.data_size,
          .documents = e.shape.block_causal};
}

std::vector<ValidationSet> open_validation_data(const Experiment& e, const RankGroups& ranks) {
  const ValidationConfig& v = e.config.validation;
  std::vector<ValidationSet> sets;
  if (!v.enable) return sets;
  for (const ValidationSetConfig& set : v.datasets) sets.push_back({set.name, set.path, nullptr});
  if (sets.empty()) sets.push_back({"", v.dataset_path, nullptr});
  for (ValidationSet& set : sets) {
    const std::string_view key = v.datasets.empty() ? "validation.dataset_path" : "validation.datasets";
    data::MixedLoader loader(loader_options(
        e, ranks, {key, set.paths, v.dataloader, e.shape.validation_sequence, data::Order::sequential}));
    set.data = std::make_unique<BatchSource>(std::move(loader),
                                             BatchSource::Options{.batch = e.shape.validation_batch,
                                                                  .data_rank = ranks.data_rank,
                                                                  .data_size = ranks.data_size,
                                                                  .documents = e.shape.block_causal});
  }
  return sets;
}

}  // namespace ottava
