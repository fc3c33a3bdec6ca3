#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/data/loader.h"
#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace ottava::data::test {

/// One id per byte, BOS 256, EOS 257.
inline TextEncoder byte_encoder() {
  return {.encode =
              [](std::string_view text, std::vector<int32_t>& ids) {
                for (unsigned char c : text) ids.push_back(c);
              },
          .vocab_size = 258,
          .bos_id = 256,
          .eos_id = 257,
          .fingerprint = "bytes"};
}

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// The message of the E that `body` throws; fails the test when it throws nothing or something else.
template <class E, class F>
std::string message_of(F&& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    FAIL("threw another kind of error: " << error.what());
  }
  FAIL("nothing was thrown");
  return {};
}

inline bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
#define CHECK_HAS(text, part)                     \
  do {                                            \
    INFO(text);                                   \
    CHECK(::ottava::data::test::has(text, part)); \
  } while (false)

/// JSON lines of texts with an even number of bytes: with BOS and EOS, windows of two tokens drop nothing.
inline std::string numbered_lines(int first, int count) {
  std::string lines;
  for (int i = first; i < first + count; ++i) {
    std::string text =
        fmt::format("document {:05}{}", i, std::string(static_cast<size_t>(i * 7 % 60 / 2 * 2), 'x'));
    lines += fmt::format("{{\"id\": {}, \"text\": \"{}\"}}\n", i, text);
  }
  return lines;
}

/// Of a loader of bytes over small blocks.
inline LoaderOptions options_for(const std::string& source, int64_t seq_len = 1) {
  LoaderOptions o;
  o.sources = {source};
  o.encoder = byte_encoder();
  o.seq_len = seq_len;
  o.seed = 7;
  o.block_bytes = 2000;
  return o;
}

/// Inputs and the last target of samples [first, first + count): the tokens of the windows.
inline std::vector<int32_t> windows(TokenLoader& loader, int64_t seq_len, int64_t first, int64_t count) {
  std::vector<int32_t> x(static_cast<size_t>(count * seq_len)), y(x.size()), all;
  loader.read(first, count, {x.data(), y.data()});
  for (int64_t s = 0; s < count; ++s) {
    for (int64_t i = 0; i < seq_len; ++i) {
      size_t at = static_cast<size_t>(s * seq_len + i);
      all.push_back(x[at]);
      if (i > 0) REQUIRE(y[at - 1] == x[at]);
    }
    all.push_back(y[static_cast<size_t>((s + 1) * seq_len - 1)]);
  }
  return all;
}

}  // namespace ottava::data::test
