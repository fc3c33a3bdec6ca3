#include "core/data/byte_stream.h"

#define ZLIB_CONST
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/io/attempts.h"

namespace ottava::data {
namespace {

constexpr std::string_view kWhere = "data";
constexpr int64_t kInputBytes = 256 << 10;

class PlainStream : public ByteStream {
 public:
  explicit PlainStream(const std::string& path) : file_(File::open_for_reading(path)) {}
  size_t append(std::string& out, size_t bytes) override {
    int64_t got = append_range(file_, offset_, bytes, out);
    offset_ += got;
    return got;
  }

 private:
  File file_;
  int64_t offset_ = 0;
};

// Compressed bytes of a file, piece by piece; shared by both decoders. A decoder cannot begin anew where a
// piece could not be read, so that this tries again, with the file opened anew: what was opened may stay
// unreadable.
class CompressedInput {
 public:
  explicit CompressedInput(const std::string& path)
      : file_(File::open_for_reading(path)), bytes_(file_.size()) {}
  const char* next() const { return buffer_.data() + used_; }
  size_t available() const { return buffer_.size() - used_; }
  void consume(size_t bytes) { used_ += bytes; }
  /// Position in the file of the next unread byte.
  int64_t offset() const { return read_ - available(); }
  /// False at the end of the file.
  bool refill() {
    if (available() > 0) return true;
    used_ = 0;
    bool is_first = true;
    read_ += in_three_attempts({.complaint = fmt::format("'{}' could not be read", file_.path())}, [&] {
      if (!std::exchange(is_first, false)) open_anew();
      buffer_.clear();
      return append_range(file_, read_, kInputBytes, buffer_);
    });
    return !buffer_.empty();
  }
  template <class... A>
  [[noreturn]] void broken(fmt::format_string<A...> format, A&&... args) const {
    fail<FileError>(kWhere, "'{}' {} (at byte {} of {}); make or copy the file again", file_.path(),
                    fmt::format(format, std::forward<A>(args)...), offset(), file_.size());
  }

 private:
  void open_anew() {
    File again = File::open_for_reading(file_.path());
    if (again.size() != bytes_) {
      fail<FileError>(kWhere, "'{}' changed while it was being read: {} bytes, {} before; restore it",
                      file_.path(), again.size(), bytes_);
    }
    file_ = std::move(again);
  }

  File file_;
  int64_t bytes_ = 0;  ///< when it was first opened
  std::string buffer_;
  size_t used_ = 0;
  int64_t read_ = 0;
};

class GzipStream : public ByteStream {
 public:
  explicit GzipStream(const std::string& path) : input_(path) {
    if (inflateInit2(&state_, 15 + 16) != Z_OK) fail<FileError>(kWhere, "cannot start zlib for '{}'", path);
  }
  ~GzipStream() override { inflateEnd(&state_); }

  size_t append(std::string& out, size_t bytes) override {
    size_t start = out.size();
    out.resize(start + bytes);
    state_.next_out = reinterpret_cast<Bytef*>(out.data() + start);
    state_.avail_out = static_cast<uInt>(bytes);
    while (state_.avail_out > 0 && next_member()) inflate_some();
    out.resize(out.size() - state_.avail_out);
    return out.size() - start;
  }

 private:
  // False when the file has ended after a complete member; zero padding after it is allowed, as gzip(1) does.
  bool next_member() {
    if (inside_) return true;
    while (input_.refill()) {
      if (*input_.next() != 0 || !decoded_any_) {
        inflateReset(&state_);
        return inside_ = decoded_any_ = true;
      }
      input_.consume(1);
    }
    if (!decoded_any_) input_.broken("is empty, expected gzip data");
    return false;
  }
  void inflate_some() {
    if (!input_.refill()) input_.broken("is truncated: the gzip data ends in the middle");
    state_.next_in = reinterpret_cast<const Bytef*>(input_.next());
    state_.avail_in = static_cast<uInt>(input_.available());
    int result = inflate(&state_, Z_NO_FLUSH);
    input_.consume(input_.available() - state_.avail_in);
    if (result == Z_STREAM_END) {
      inside_ = false;
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      input_.broken("is not valid gzip data: {}", state_.msg ? state_.msg : "damaged");
    }
  }

  CompressedInput input_;
  z_stream state_{};
  bool inside_ = false, decoded_any_ = false;
};

class ZstdStream : public ByteStream {
 public:
  explicit ZstdStream(const std::string& path) : input_(path), state_(ZSTD_createDStream()) {
    if (!state_) fail<FileError>(kWhere, "cannot start zstd for '{}'", path);
    // Files written with `zstd --long=31` are read too.
    ZSTD_DCtx_setParameter(state_, ZSTD_d_windowLogMax, 31);
  }
  ~ZstdStream() override { ZSTD_freeDStream(state_); }

  size_t append(std::string& out, size_t bytes) override {
    size_t start = out.size();
    out.resize(start + bytes);
    ZSTD_outBuffer to{out.data() + start, bytes, 0};
    while (to.pos < bytes) {
      // An unfinished frame may hold back decoded bytes, so zstd is asked once more before it gets more
      // input.
      if (!input_.refill() && !pending_) {
        if (inside_) input_.broken("is truncated: the zstd data ends in the middle");
        if (!decoded_any_) input_.broken("is empty, expected zstd data");
        break;
      }
      ZSTD_inBuffer from{input_.next(), input_.available(), 0};
      size_t before = to.pos, result = ZSTD_decompressStream(state_, &to, &from);
      if (ZSTD_isError(result)) input_.broken("is not valid zstd data: {}", ZSTD_getErrorName(result));
      input_.consume(from.pos);
      decoded_any_ = true;
      inside_ = result != 0;
      pending_ = inside_ && (to.pos == bytes || to.pos > before);
    }
    out.resize(start + to.pos);
    return to.pos;
  }

 private:
  CompressedInput input_;
  ZSTD_DStream* state_;
  bool inside_ = false, pending_ = false, decoded_any_ = false;
};

}  // namespace

int64_t append_range(const File& file, int64_t offset, int64_t bytes, std::string& out) {
  bytes = std::max<int64_t>(std::min(bytes, file.size() - offset), 0);
  size_t start = out.size();
  out.resize(start + bytes);
  file.read_at(out.data() + start, bytes, offset);
  return bytes;
}

std::unique_ptr<ByteStream> open_stream(const std::string& path, Compression compression) {
  switch (compression) {
    case Compression::gzip:
      return std::make_unique<GzipStream>(path);
    case Compression::zstd:
      return std::make_unique<ZstdStream>(path);
    case Compression::none:
      break;
  }
  return std::make_unique<PlainStream>(path);
}

}  // namespace ottava::data
