#pragma once

#include <zlib.h>
#include <zstd.h>

#include <string>
#include <string_view>

#include "tests/support/catch.h"

namespace ottava::data::test {

inline std::string gzip(std::string_view text) {
  z_stream state{};
  REQUIRE(deflateInit2(&state, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&state, text.size()) + 64, '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  state.avail_in = static_cast<uInt>(text.size());
  state.next_out = reinterpret_cast<Bytef*>(out.data());
  state.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&state, Z_FINISH) == Z_STREAM_END);
  out.resize(state.total_out);
  deflateEnd(&state);
  return out;
}

inline std::string zstd(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  size_t size = ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3);
  REQUIRE_FALSE(ZSTD_isError(size));
  out.resize(size);
  return out;
}

}  // namespace ottava::data::test
