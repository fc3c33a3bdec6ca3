#include "core/data/loader.h"

#include <algorithm>
#include <atomic>
#include <set>

#include "core/data/corpus.h"
#include "core/data/segment_queue.h"
#include "core/data/text_encoder.h"
#include "core/data/tokenizer/tokenizer.h"
#include "tests/core/data/compress.h"
#include "tests/core/data/fixture.h"
#include "tests/core/data/tokenizer/small_tokenizer.h"

using namespace ottava;
using namespace ottava::data;
using namespace ottava::data::test;

namespace {

std::vector<std::string> documents_of(const std::vector<int32_t>& tokens) {
  std::vector<std::string> documents;
  for (int32_t id : tokens) {
    if (id == 256)
      documents.emplace_back();
    else if (id < 256)
      documents.back().push_back(static_cast<char>(id));
  }
  return documents;
}

int64_t epoch_length(const LoaderOptions& o) {
  TokenLoader loader(o);
  int64_t s = 0;
  for (; !loader.samples_per_epoch(); ++s) windows(loader, o.seq_len, s, 1);
  return *loader.samples_per_epoch();
}

}  // namespace

TEST_CASE("every document comes exactly once per epoch, in an order that changes with epoch and seed") {
  TemporaryFolder folder;
  folder.write("a.jsonl", numbered_lines(0, 300));
  folder.write("b.jsonl", numbered_lines(300, 3));
  LoaderOptions o = options_for(folder.path());
  int64_t n = epoch_length(o);
  TokenLoader loader(o);
  CHECK(loader.corpus().blocks() > 8);

  std::vector<std::string> first = documents_of(windows(loader, 1, 0, n));
  std::vector<std::string> second = documents_of(windows(loader, 1, n, n));
  CHECK(first.size() == 303);
  CHECK(std::set<std::string>(first.begin(), first.end()).size() == 303);
  CHECK(std::set<std::string>(first.begin(), first.end()) ==
        std::set<std::string>(second.begin(), second.end()));
  CHECK(second.size() == 303);
  CHECK(first != second);
  CHECK_FALSE(std::is_sorted(first.begin(), first.end()));
  // Not only the blocks moved: within the block of document 0 the neighbours differ between the epochs.
  auto after = [](const std::vector<std::string>& list, std::string_view name) {
    auto at =
        std::find_if(list.begin(), list.end(), [&](const std::string& d) { return d.starts_with(name); });
    return at + 1 == list.end() ? std::string() : *(at + 1);
  };
  int moved = 0;
  for (int i = 0; i < 20; ++i) {
    std::string name = fmt::format("document {:05}", i);
    moved += after(first, name) != after(second, name);
  }
  CHECK(moved > 10);
  CHECK(loader.stats().epochs == Approx(2.0).margin(0.2));

  o.seed = 8;
  TokenLoader other(o);
  CHECK(documents_of(windows(other, 1, 0, n)) != first);
}

TEST_CASE("sequential order is file order in every epoch") {
  TemporaryFolder folder;
  LoaderOptions o = options_for(folder.write("a.jsonl", numbered_lines(0, 100)));
  o.order = Order::sequential;
  int64_t n = epoch_length(o);
  TokenLoader loader(o);
  std::vector<std::string> first = documents_of(windows(loader, 1, 0, n));
  CHECK(first.size() == 100);
  CHECK(std::is_sorted(first.begin(), first.end()));
  CHECK(documents_of(windows(loader, 1, n, n)) == first);
}

TEST_CASE("the sequence does not depend on threads, on ranks or on where reading begins") {
  TemporaryFolder folder;
  constexpr int64_t kSeq = 19;
  LoaderOptions o = options_for(folder.write("a.jsonl", numbered_lines(0, 400)), kSeq);
  int64_t total = epoch_length(o) * 5 / 2;
  TokenLoader reference(o);
  std::vector<int32_t> all = windows(reference, kSeq, 0, total);
  auto part = [&](int64_t first, int64_t count) {
    return std::vector<int32_t>(all.begin() + first * (kSeq + 1), all.begin() + (first + count) * (kSeq + 1));
  };

  for (int threads : {2, 3, 5}) {
    o.threads = threads;
    o.prefetch = threads - 2;
    TokenLoader loader(o);
    CHECK(windows(loader, kSeq, 0, total) == all);
  }
  for (int ranks : {2, 3, 7}) {
    constexpr int64_t kLocal = 4;
    for (int rank = 0; rank < ranks; ++rank) {
      TokenLoader loader(o);
      for (int64_t s = rank * kLocal; s + kLocal <= total; s += ranks * kLocal) {
        REQUIRE(windows(loader, kSeq, s, kLocal) == part(s, kLocal));
      }
    }
  }
  for (int64_t first : {int64_t{1}, total / 7, total / 3, total / 2, total - 1}) {
    TokenLoader resumed(o);
    CHECK(windows(resumed, kSeq, first, total - first) == part(first, total - first));
  }
  TokenLoader jumping(o);
  for (int64_t first : {total / 2, int64_t{3}, total - 2, total / 2 + 1, int64_t{0}}) {
    CHECK(windows(jumping, kSeq, first, 2) == part(first, 2));
  }
}

TEST_CASE("with an index file resuming tokenizes only what is read") {
  TemporaryFolder folder, index;
  LoaderOptions o = options_for(folder.write("a.jsonl", numbered_lines(0, 400)), 19);
  o.index_folder = index / "deep/er";
  std::atomic<int64_t> encoded{0};
  auto encode = o.encoder.encode;
  o.encoder.encode = [&, encode](std::string_view text, std::vector<int32_t>& ids) {
    encoded += static_cast<int64_t>(text.size());
    encode(text, ids);
  };
  int64_t n = epoch_length(o);
  int64_t whole = encoded.exchange(0);
  std::vector<int32_t> expected, got;
  {
    LoaderOptions plain = o;
    plain.index_folder.clear();
    TokenLoader loader(plain);
    expected = windows(loader, 19, 3 * n + n / 2, 4);
  }
  encoded = 0;
  {
    o.prefetch = 0;
    TokenLoader loader(o);
    CHECK(loader.samples_per_epoch() == n);
    got = windows(loader, 19, 3 * n + n / 2, 4);
  }
  CHECK((got == expected));
  CHECK(encoded < whole / 4);
}

TEST_CASE("without an index resuming in a later epoch tokenizes the data once, not once for each epoch") {
  TemporaryFolder folder;
  LoaderOptions o = options_for(folder.write("a.jsonl", numbered_lines(0, 400)), 19);
  const int64_t n = epoch_length(o), first = 9 * n + n / 2;
  std::vector<int32_t> all;
  {
    TokenLoader loader(o);
    all = windows(loader, 19, 0, first + 4);
  }
  std::atomic<int64_t> encoded{0};
  auto encode = o.encoder.encode;
  o.encoder.encode = [&, encode](std::string_view text, std::vector<int32_t>& ids) {
    encoded += static_cast<int64_t>(text.size());
    encode(text, ids);
  };
  epoch_length(o);
  const int64_t whole = encoded.exchange(0);
  std::vector<int32_t> got;
  {
    TokenLoader loader(o);
    got = windows(loader, 19, first, 4);
  }
  CHECK((got == std::vector<int32_t>(all.end() - 4 * 20, all.end())));
  CHECK(encoded < 4 * whole);
}

TEST_CASE("a block in which only the middle of a compressed file lies is no stumbling block") {
  TemporaryFolder folder;
  const std::string first = gzip(numbered_lines(0, 40)), second = gzip(numbered_lines(40, 400));
  folder.write("a.jsonl.gz", first), folder.write("b.jsonl.gz", second);
  LoaderOptions o = options_for(folder.path());
  o.block_bytes = 2 * std::ssize(first);  // the second file begins in block 0 and takes up all of block 1
  REQUIRE(std::ssize(second) > *o.block_bytes);
  REQUIRE(TokenLoader(o).corpus().blocks() == 2);
  REQUIRE(TokenLoader(o).corpus().parts(1).empty());
  const int64_t n = epoch_length(o);
  CHECK(TokenLoader(o).count_samples() == n);
  // Epoch 0 begins with the block that holds nothing, which its start passes over; epoch 1 ends with it.
  const Corpus corpus(find_data_files(o.sources), {.block_bytes = *o.block_bytes});
  const auto begins_with = [&](int64_t epoch) {
    return block_order(corpus, Order::shuffled, o.seed, epoch).front();
  };
  for (o.seed = 0; begins_with(0) != 1 || begins_with(1) != 0;) ++o.seed;
  TemporaryFolder index;
  o.index_folder = index.path();
  std::vector<int32_t> expected;
  {
    TokenLoader loader(o);
    for (int64_t s = 0; s < n; ++s) windows(loader, 1, s, 1);
    expected = windows(loader, 1, n, 3);
  }
  TokenLoader resumed(o);
  CHECK((windows(resumed, 1, n, 3) == expected));
}

TEST_CASE("windows of a block do not overlap, its last partial window is dropped and counted") {
  TemporaryFolder folder;
  LoaderOptions o = options_for(folder.write("a.txt", "abcdefghijklmnopqrstuvwxyz"), 4);
  TokenLoader loader(o);
  // BOS a-z EOS: 28 tokens, five windows of five, three tokens over.
  std::vector<int32_t> tokens = windows(loader, 4, 0, 5);
  CHECK(tokens.front() == 256);
  for (int i = 1; i < 25; ++i) CHECK(tokens[static_cast<size_t>(i)] == 'a' + i - 1);
  std::vector<int32_t> again = windows(loader, 4, 5, 1);
  CHECK(again[0] == 256);
  CHECK(loader.samples_per_epoch() == 5);
  DataStats stats = loader.stats();
  CHECK(stats.documents == 1);
  CHECK(stats.tokens == 28);
  CHECK(stats.dropped_tokens == 3);
  CHECK(stats.bytes == 26);
}

TEST_CASE("the time that a reader waited is counted") {
  TemporaryFolder folder;
  // One document, of which no window is ready before all of it is. On a loaded machine it can be, still,
  // before it is asked for.
  const LoaderOptions o = options_for(folder.write("a.txt", std::string(1 << 18, 'a')), 4);
  double waited = 0;
  for (int i = 0; i < 100 && waited == 0; ++i) {
    TokenLoader loader(o);
    windows(loader, 4, 0, 1);
    waited = loader.stats().seconds_waited;
  }
  CHECK(waited > 0);
}

TEST_CASE("document starts are positions within the window, 0 for a document that began before it") {
  TemporaryFolder folder;
  LoaderOptions o = options_for(folder.write("a.txt", "abc<|endoftext|>\ndefghij"), 7);
  o.order = Order::sequential;
  TokenLoader loader(o);
  std::vector<int32_t> x(7), y(7), starts(7);
  loader.read(0, 1, {x.data(), y.data(), starts.data()});
  CHECK(x == std::vector<int32_t>{256, 'a', 'b', 'c', 257, 256, 'd'});
  CHECK(y == std::vector<int32_t>{'a', 'b', 'c', 257, 256, 'd', 'e'});
  CHECK(starts == std::vector<int32_t>{0, 0, 0, 0, 0, 5, 5});
}

TEST_CASE("a loader that is thrown away in the middle of its work stops") {
  TemporaryFolder folder;
  LoaderOptions o = options_for(folder.write("a.jsonl", numbered_lines(0, 2000)), 3);
  o.threads = 3;
  for (int i = 0; i < 20; ++i) {
    TokenLoader loader(o);
    loader.start(i * 10);
    if (i % 2) windows(loader, 3, i * 10, 1);
  }
}

TEST_CASE("the fingerprint follows the data and what is done with it, not where it lies") {
  TemporaryFolder a, b;
  std::string lines = numbered_lines(0, 10), other = numbered_lines(1, 10);
  LoaderOptions o = options_for(a.write("x.jsonl", lines));
  uint64_t first = TokenLoader(o).fingerprint();
  o.sources = {b.write("y.jsonl", lines)};
  CHECK(TokenLoader(o).fingerprint() == first);
  o.seq_len = 2;
  CHECK(TokenLoader(o).fingerprint() != first);
  o.seq_len = 1;
  o.encoder.fingerprint = "others";
  CHECK(TokenLoader(o).fingerprint() != first);
  o.encoder.fingerprint = "bytes";
  o.sources = {b.write("y.jsonl", other)};
  CHECK(TokenLoader(o).fingerprint() != first);
}

TEST_CASE("where BOS and EOS are one token, one of it stands between documents") {
  using Ids = std::vector<int32_t>;
  TemporaryFolder folder;
  const auto tokenizer = Tokenizer::parse(ottava::test::SmallTokenizer{}.json(),
                                          R"({"bos_token":"<s>","eos_token":"<s>"})", "t");
  LoaderOptions o{.sources = {folder.write("a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"cd\"}\n")},
                  .encoder = make_text_encoder(tokenizer, {}),
                  .seq_len = 5,
                  .order = Order::sequential};
  CHECK(marks_text(o.encoder) == "each document begins with BOS, which is also EOS");
  TokenLoader loader(o);
  CHECK(windows(loader, 5, 0, 1) == Ids{260, 'a', 'b', 260, 'c', 'd'});
  CHECK(loader.samples_per_epoch().value_or(1) == 1);

  o.encoder = make_text_encoder(tokenizer, {.bos = false});
  TokenLoader ended(o);
  CHECK(windows(ended, 5, 0, 1) == Ids{'a', 'b', 260, 'c', 'd', 260});
  CHECK(marks_text(o.encoder) == "each document ends with EOS");
}

TEST_CASE("how many documents text with separators has does not depend on the length of windows") {
  TemporaryFolder folder;
  const std::string document = std::string(5000, 'x') + "\n\n" + std::string(5000, 'y');
  const std::string source = folder.write("a.txt", document + "<|endoftext|>\n" + document);
  for (const int64_t seq_len : {16, 2000}) {
    TokenLoader loader({.sources = {source}, .encoder = byte_encoder(), .seq_len = seq_len});
    loader.count_samples();
    CHECK(loader.known().documents == 2);
  }
}

TEST_CASE(
    "a run that had two tokens between documents does not go on unnoticed with one; of shards nothing "
    "changes") {
  TemporaryFolder folder;
  LoaderOptions before = options_for(folder.write("a.jsonl", numbered_lines(0, 10)));
  before.encoder.eos_id = before.encoder.bos_id;
  LoaderOptions now = before;
  now.encoder.eos_id.reset();
  now.encoder.bos_is_eos = true;
  CHECK(TokenLoader(now).fingerprint() != TokenLoader(before).fingerprint());
  LoaderOptions without = now;
  without.encoder.bos_is_eos = false;
  CHECK(TokenLoader(now).fingerprint() != TokenLoader(without).fingerprint());

  std::string ids;
  for (uint16_t id = 0; id < 100; ++id) put(ids, id);
  for (LoaderOptions* o : {&before, &now}) {
    o->sources = {folder.write("ids.bin", ids)};
    o->format = Format::tokens_u16;
  }
  CHECK(TokenLoader(now).fingerprint() == TokenLoader(before).fingerprint());
}
