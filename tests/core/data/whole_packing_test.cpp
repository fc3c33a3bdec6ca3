#include "core/data/whole_packing.h"

#include <map>
#include <set>

#include "core/data/chat/masked_token.h"
#include "core/data/order.h"
#include "tests/support/catch.h"

using namespace ottava::data;

namespace {

// Document d of length n: n tokens 100 d, 100 d + 1, ...
std::vector<std::vector<int32_t>> documents(const std::vector<int>& lengths) {
  std::vector<std::vector<int32_t>> out;
  for (size_t d = 0; d < lengths.size(); ++d) {
    out.emplace_back();
    for (int i = 0; i < lengths[d]; ++i) out.back().push_back(static_cast<int32_t>(100 * d) + i);
  }
  return out;
}

constexpr int32_t kPad = 99999;

}  // namespace

TEST_CASE("documents stay whole, the longest go first, and the rest of a window is pads") {
  const WholePacked out = pack_whole(documents({3, 8, 2, 11, 0, 5, 4}), {.seq_len = 9, .pad_id = kPad});
  CHECK(out.documents == 5);
  CHECK(out.tokens == 22);
  CHECK(out.too_long == 1);
  CHECK(out.dropped_tokens == 11);
  REQUIRE(out.packed.windows(9) == 3);
  CHECK(out.packed.dropped(9) == 0);
  // 8 + 2 fill a window; 5 and 4 leave room for one, so 3 stands by itself.
  CHECK(out.packed.document_starts == std::vector<int64_t>{0, 8, 10, 15, 19, 20, 23});
  std::vector<int32_t> inputs(9), targets(9), starts(9);
  out.packed.copy_window(1, 9, inputs.data(), targets.data(), starts.data());
  CHECK(inputs == std::vector<int32_t>{500, 501, 502, 503, 504, 600, 601, 602, 603});
  CHECK(targets == std::vector<int32_t>{501, 502, 503, 504, kNoTarget, 601, 602, 603, kNoTarget});
  CHECK(starts == std::vector<int32_t>{0, 0, 0, 0, 0, 5, 5, 5, 5});
  out.packed.copy_window(2, 9, inputs.data(), targets.data(), starts.data());
  CHECK(inputs == std::vector<int32_t>{0, 1, 2, kPad, kPad, kPad, kPad, kPad, kPad});
  CHECK(targets[0] == 1);
  CHECK(std::count(targets.begin(), targets.end(), kNoTarget) == 7);
  CHECK(starts == std::vector<int32_t>{0, 0, 0, 3, 3, 3, 3, 3, 3});
}

TEST_CASE("the order moves equally long documents and windows, and changes no count") {
  std::vector<int> lengths;
  for (int d = 0; d < 200; ++d) lengths.push_back(1 + d * 37 % 23);
  const auto all = documents(lengths);
  std::set<std::vector<int32_t>> seen;
  std::optional<int64_t> windows;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const auto order = permutation(200, {.seed = seed});
    const WholePacked out =
        pack_whole(all, {.seq_len = 31, .pad_id = kPad, .order = order, .windows = {{.seed = seed}}});
    if (!windows) windows = out.packed.windows(31);
    CHECK(out.packed.windows(31) == *windows);
    CHECK(seen.insert(out.packed.tokens).second);
    std::map<int32_t, int> count;
    for (int32_t token : out.packed.tokens) ++count[id_of(token)];
    count.erase(kPad);
    CHECK(static_cast<int64_t>(count.size()) == out.tokens);
  }
  // Within 2% of what there must be.
  int64_t tokens = 0;
  for (int length : lengths) tokens += length;
  CHECK(*windows * 32 <= tokens + tokens / 50 + 32);
}
