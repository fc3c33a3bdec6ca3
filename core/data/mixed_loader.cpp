#include "core/data/mixed_loader.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/text/listed.h"
#include "core/text/number.h"
#include "core/text/split.h"

namespace ottava::data {
namespace {

// What is before and behind a separator, without a space before either.
std::pair<std::string_view, std::string_view> halves(std::string_view text, char separator) {
  if (text.starts_with(' ')) text.remove_prefix(1);
  const size_t at = std::min(text.find(separator), text.size());
  std::string_view behind = text.substr(std::min(at + 1, text.size()));
  if (behind.starts_with(' ')) behind.remove_prefix(1);
  return {text.substr(0, at), behind};
}

}  // namespace

MixedLoader::MixedLoader(LoaderOptions options)
    : mixture_(std::vector<Mixture::Stage>{{.from_sample = 0, .weights = {1}}}) {
  sources_.push_back({"", std::make_unique<TokenLoader>(std::move(options))});
}

void MixedLoader::start(int64_t first_sample) {
  const std::vector<int64_t> first = mixture_.counts(first_sample),
                             quotas = mixture_.begun(first_sample + 1).back().quotas;
  for (size_t i = 0; i < sources_.size(); ++i)
    if (quotas[i] > 0) sources_[i].loader->start(first[i]);
}

void MixedLoader::read(int64_t first_sample, int64_t count, const TokenBatch& out, int32_t* sources) {
  if (first_sample < 0 || count < 0)
    fail<DataError>("data", "samples {} and {} more are asked for", first_sample, count);
  const int64_t length = sources_[0].loader->options().seq_len;
  for (int64_t i = 0; i < count; ++i) {
    const MixtureTable::Place place = mixture_.at(first_sample + i);
    const int64_t at = i * length;
    sources_[place.source].loader->read(
        place.index, 1,
        {out.inputs + at, out.targets + at, out.document_starts ? out.document_starts + at : nullptr});
    if (sources) sources[i] = place.source;
  }
}

DataStats MixedLoader::stats() const {
  DataStats all;
  for (const Source& source : sources_) {
    const DataStats s = source.loader->stats();
    if (&source == &sources_[0]) all.epochs = s.epochs;
    if (all.bad_records == 0) all.first_bad_record = s.first_bad_record;
    all.documents += s.documents, all.tokens += s.tokens, all.bytes += s.bytes;
    all.dropped_tokens += s.dropped_tokens, all.too_long += s.too_long, all.bad_records += s.bad_records;
    all.joined_completions += s.joined_completions;
    all.seconds_waited += s.seconds_waited, all.buffer_bytes += s.buffer_bytes;
  }
  return all;
}

uint64_t MixedLoader::fingerprint(int64_t samples) const {
  if (sources_.size() == 1) return sources_[0].loader->fingerprint();
  const std::vector<int64_t> counts = mixture_.counts(samples);
  std::string all;
  for (size_t i = 0; i < sources_.size(); ++i)
    if (counts[i] > 0)
      all += fmt::format("{}\n{:016x}\n", sources_[i].name, sources_[i].loader->fingerprint());
  return XXH64(all.data(), all.size(), 0);
}

std::map<std::string, std::string> MixedLoader::versions(int64_t samples) const {
  const std::vector<int64_t> counts = mixture_.counts(samples);
  std::map<std::string, std::string> out;
  for (size_t i = 0; i < sources_.size(); ++i)
    if (sources_.size() == 1 || counts[i] > 0) out[sources_[i].name] = sources_[i].loader->version();
  return out;
}

std::string MixedLoader::order_text(int64_t samples) const {
  std::string text;
  if (sources_.size() == 1) return text;
  for (const Mixture::Begun& stage : mixture_.begun(samples)) {
    add_item(text, fmt::format("{}:", stage.from_sample), "; ");
    for (size_t i = 0; i < sources_.size(); ++i)
      if (stage.quotas[i] > 0)
        text += fmt::format("{} {} {}", text.ends_with(':') ? "" : ",", sources_[i].name, stage.quotas[i]);
  }
  return text;
}

std::vector<Mixture::Begun> MixedLoader::begun_in(std::string_view order_text) const {
  std::vector<Mixture::Begun> out;
  if (order_text.empty()) return out;
  for (const std::string_view stage : split_text(order_text, ';')) {
    const auto [from, shares] = halves(stage, ':');
    const std::optional<int64_t> first = parse_number<int64_t>(from);
    if (!first || (out.empty() ? *first != 0 : *first <= out.back().from_sample)) return {};
    Mixture::Begun begun{.from_sample = *first, .quotas = std::vector<int64_t>(sources_.size())};
    for (const std::string_view share : split_text(shares, ',')) {
      const auto [name, quota] = halves(share, ' ');
      const auto source = std::ranges::find(sources_, name, &Source::name);
      const std::optional<int64_t> slots = parse_number<int64_t>(quota);
      if (source == sources_.end() || !slots || *slots < 1 || *slots > MixtureTable::kPeriod) return {};
      begun.quotas[source - sources_.begin()] = *slots;
    }
    const auto sum = std::accumulate(begun.quotas.begin(), begun.quotas.end(), int64_t{0});
    if (sum != MixtureTable::kPeriod) return {};
    out.push_back(std::move(begun));
  }
  return out;
}

}  // namespace ottava::data
