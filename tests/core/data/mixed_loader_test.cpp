#include "core/data/mixed_loader.h"

#include <algorithm>
#include <cmath>

#include "tests/core/data/fixture.h"

using namespace ottava;
using namespace ottava::data;
using namespace ottava::data::test;

namespace {

constexpr int64_t kLength = 16;

/// Three sources of text of their own letter each, of different lengths.
class Sources {
 public:
  MixedLoader loader(std::vector<Mixture::Stage> stages = {{0, {5, 3, 2}}}) const {
    std::vector<MixedLoader::Source> sources;
    for (const auto& [name, bytes] : kTexts)
      sources.push_back({name, std::make_unique<TokenLoader>(options(name))});
    return {std::move(sources), Mixture(stages)};
  }
  LoaderOptions options(const std::string& name) const {
    LoaderOptions o{
        .sources = {folder_ / (name + ".txt")}, .encoder = byte_encoder(), .seq_len = kLength, .seed = 3};
    o.block_bytes = 2000;
    o.max_text_bytes = 100;
    return o;
  }
  Sources() {
    for (const auto& [name, bytes] : kTexts) {
      std::string text;
      for (int i = 0; static_cast<int>(text.size()) < bytes; ++i) text += fmt::format("{} {} ", name, i);
      folder_.write(name + ".txt", text);
    }
  }

 private:
  inline static const std::vector<std::pair<std::string, int>> kTexts{{"a", 20000}, {"b", 7000}, {"c", 900}};
  TemporaryFolder folder_;
};

struct Read {
  std::vector<int32_t> inputs, sources;
  bool operator==(const Read&) const = default;
};

Read read(MixedLoader& loader, int64_t first, int64_t count) {
  Read out{std::vector<int32_t>(static_cast<size_t>(count * kLength)),
           std::vector<int32_t>(static_cast<size_t>(count))};
  std::vector<int32_t> targets(out.inputs.size());
  loader.read(first, count, {out.inputs.data(), targets.data()}, out.sources.data());
  return out;
}

}  // namespace

TEST_CASE("a mixture's samples are its sources' own, in their order, over many epochs") {
  Sources sources;
  MixedLoader mixed = sources.loader();
  const Read all = read(mixed, 0, 4000);
  std::vector<int64_t> next(3);
  std::vector<std::unique_ptr<TokenLoader>> alone;
  for (const char* name : {"a", "b", "c"})
    alone.push_back(std::make_unique<TokenLoader>(sources.options(name)));
  std::vector<int32_t> inputs(kLength), targets(kLength);
  for (size_t s = 0; s < 4000; ++s) {
    const auto source = static_cast<size_t>(all.sources[s]);
    alone[source]->read(next[source]++, 1, {inputs.data(), targets.data()});
    REQUIRE(std::equal(inputs.begin(), inputs.end(),
                       all.inputs.begin() + static_cast<std::ptrdiff_t>(s * kLength)));
  }
  CHECK(next == std::vector<int64_t>{2000, 1200, 800});
  CHECK(next[2] / mixed.sources()[2].loader->samples_per_epoch().value() > 10);
}

TEST_CASE("a mixture reads the same wherever and by whomever it is entered") {
  Sources sources;
  const std::vector<Mixture::Stage> stages{{0, {5, 3, 0}}, {700, {1, 1, 6}}};
  MixedLoader whole = sources.loader(stages);
  const Read all = read(whole, 0, 1500);
  auto part = [&](int64_t first, int64_t count) {
    return Read{{all.inputs.begin() + first * kLength, all.inputs.begin() + (first + count) * kLength},
                {all.sources.begin() + first, all.sources.begin() + first + count}};
  };
  for (int64_t first : {0, 1, 333, 699, 700, 701, 1400}) {
    MixedLoader resumed = sources.loader(stages);
    resumed.start(first);
    CHECK(read(resumed, first, 50) == part(first, 50));
  }
  // Ranks take turns: each reads its part of every step.
  for (int64_t rank = 0; rank < 4; ++rank) {
    MixedLoader loader = sources.loader(stages);
    for (int64_t s = rank * 3; s + 3 <= 1500; s += 12) REQUIRE(read(loader, s, 3) == part(s, 3));
  }
}

TEST_CASE("what has been read decides whether data is the same") {
  Sources sources;
  MixedLoader before = sources.loader({{0, {5, 3, 0}}}),
              after = sources.loader({{0, {5, 3, 0}}, {700, {1, 1, 6}}});
  CHECK(before.order_text(0) == "");
  CHECK(before.order_text(700) == "0: a 40960, b 24576");
  CHECK(before.order_text(700) == after.order_text(700));
  CHECK(after.order_text(701) == "0: a 40960, b 24576; 700: a 8192, b 8192, c 49152");
  const std::vector<Mixture::Begun> begun = before.begun_in(after.order_text(701));
  REQUIRE(begun.size() == 2);
  CHECK(begun[0].quotas == before.mixture().begun(1)[0].quotas);
  CHECK(begun[1].from_sample == 700);
  CHECK(begun[1].quotas == std::vector<int64_t>{8192, 8192, 49152});
  for (const char* other : {"", "no mixture", "0: a 40960, d 24576", "0: a 40960", "1: a 65536",
                            "0: a 65536; 0: b 65536", "0: a 65536;", "0: a 65537, b -1", "0: a 65536, b",
                            "0 a 65536", "0: ", ":", ";", "0: a 0, b 65536"}) {
    INFO(other);
    CHECK(before.begun_in(other).empty());
  }
  CHECK(before.fingerprint(700) == after.fingerprint(700));
  CHECK(before.fingerprint(800) != after.fingerprint(800));
  MixedLoader single(sources.options("a"));
  CHECK(single.order_text(100) == "");
  CHECK(single.fingerprint(100) == TokenLoader(sources.options("a")).fingerprint());
}

TEST_CASE("windows of an epoch are counted or estimated before training") {
  Sources sources;
  TokenLoader counted(sources.options("a")), estimated(sources.options("a"));
  std::vector<int32_t> inputs(kLength), targets(kLength);
  const int64_t count = counted.count_samples();
  CHECK(std::abs(estimated.estimate_samples() / static_cast<double>(count) - 1) < 0.1);
  // Neither changes what is read.
  counted.read(7, 1, {inputs.data(), targets.data()});
  const std::vector<int32_t> seven = inputs;
  estimated.read(7, 1, {inputs.data(), targets.data()});
  CHECK(inputs == seven);
  CHECK(counted.samples_per_epoch() == count);
  CHECK(counted.estimate_samples() == static_cast<double>(count));

  TemporaryFolder folder;
  LoaderOptions short_one = sources.options("a");
  short_one.sources = {folder.write("short.txt", "too short")};
  CHECK_HAS(message_of<DataError>([&] { TokenLoader(short_one).estimate_samples(); }),
            "the dataset is too small");
}
