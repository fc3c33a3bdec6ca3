#include "core/io/gzip.h"

#include <zlib.h>

#include <limits>

#include "core/error.h"

namespace ottava {
namespace {

constexpr int kGzipWindow = 15 + 16;

Bytef* bytes_of(std::string_view text) {
  return reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));  // zlib only reads it
}

}  // namespace

std::string gzip(std::string_view text, std::string_view where) {
  z_stream z{};
  if (deflateInit2(&z, Z_BEST_SPEED, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    fail<FileError>(where, "zlib cannot start: out of memory");
  const uLong most = deflateBound(&z, text.size());
  if (most > std::numeric_limits<uInt>::max()) {
    deflateEnd(&z);
    fail<FileError>(where, "{} bytes are too many to compress at once, expected less than 4 GiB",
                    text.size());
  }
  std::string out(most, '\0');
  z.next_in = bytes_of(text);
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = bytes_of(out);
  z.avail_out = static_cast<uInt>(out.size());
  const int result = deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  if (result != Z_STREAM_END) fail<FileError>(where, "zlib ended with code {}", result);
  return out;
}

std::string gunzip(std::string_view packed, std::string_view where, size_t limit_bytes) {
  z_stream z{};
  if (inflateInit2(&z, kGzipWindow) != Z_OK) fail<FileError>(where, "zlib cannot start: out of memory");
  z.next_in = bytes_of(packed);
  z.avail_in = static_cast<uInt>(packed.size());
  std::string out;
  int result = Z_OK;
  while (result == Z_OK && out.size() <= limit_bytes) {
    const size_t had = out.size(), more = 1 << 20;
    out.resize(had + more);
    z.next_out = bytes_of(out) + had;
    z.avail_out = more;
    result = inflate(&z, Z_NO_FLUSH);
    out.resize(had + more - z.avail_out);
  }
  inflateEnd(&z);
  if (out.size() > limit_bytes) fail<FileError>(where, "it holds more than {} bytes", limit_bytes);
  if (result != Z_STREAM_END) fail<FileError>(where, "it is not a complete gzip file");
  return out;
}

}  // namespace ottava
