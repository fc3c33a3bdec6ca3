#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/data/loader.h"
#include "core/data/mixture.h"

namespace ottava::data {

/// Samples of several sources by one number. The mixture says which source sample s comes from and which of
/// its samples it is; each source has its own order and epochs. The position of a run stays one number, and
/// any rank may read any samples. A single source is a mixture of one.
class MixedLoader {
 public:
  struct Source {
    std::string name;
    std::unique_ptr<TokenLoader> loader;
  };
  /// There must be as many sources as the mixture has.
  MixedLoader(std::vector<Source> sources, Mixture mixture)
      : sources_(std::move(sources)), mixture_(std::move(mixture)) {}
  explicit MixedLoader(LoaderOptions options);

  /// TokenLoader::start() of the sources that are read from this sample on.
  void start(int64_t first_sample);
  /// Writes samples [first_sample, first_sample + count) to `out` and, if `sources` is not null, the source
  /// of each to it. Throws as TokenLoader::read() does, and DataError for negative numbers.
  void read(int64_t first_sample, int64_t count, const TokenBatch& out, int32_t* sources = nullptr);

  const std::vector<Source>& sources() const { return sources_; }
  const Mixture& mixture() const { return mixture_; }
  /// Gives the samples another order; the mixture has as many sources.
  void set_mixture(Mixture mixture) { mixture_ = std::move(mixture); }
  /// Sums over the sources; `epochs` is the first one's.
  DataStats stats() const;
  /// Fingerprint of the data that the first `samples` come from: for one source TokenLoader::fingerprint();
  /// for several, of the names and fingerprints of those that occur.
  uint64_t fingerprint(int64_t samples) const;
  /// TokenLoader::version() of the sources that occur in the first `samples`, or of the only one, by name;
  /// the source of MixedLoader(LoaderOptions) has an empty name.
  std::map<std::string, std::string> versions(int64_t samples) const;
  /// What decides the order of the first `samples` of several sources, quotas by sample and name: "0: books
  /// 6554, web 58982; 4096: ..."; empty for one source.
  std::string order_text(int64_t samples) const;
  /// The stages of an order_text(). None for a text of other sources, or that order_text() does not write.
  std::vector<Mixture::Begun> begun_in(std::string_view order_text) const;

 private:
  std::vector<Source> sources_;
  Mixture mixture_;
};

}  // namespace ottava::data
