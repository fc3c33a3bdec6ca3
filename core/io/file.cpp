#include "core/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "core/error.h"
#include "core/io/system_failure.h"
#include "core/io/uninterrupted.h"
#include "core/text/counted.h"

namespace ottava {
namespace {

// Linux transfers at most 0x7ffff000 bytes a call; pieces of 1 GiB stay below it.
constexpr size_t kMaxTransfer = size_t{1} << 30;

[[noreturn]] void fail_errno(std::string_view path, std::string_view action) {
  const int code = errno;
  fail_for_system(code, "file", fmt::format("cannot {} {}", action, path));
}

}  // namespace

File::File(std::string path, int flags)
    : path_(std::move(path)),
      descriptor_(uninterrupted([&] { return ::open(path_.c_str(), flags | O_CLOEXEC, 0666); })) {}

File File::open_for_reading(const std::string& path) {
  File file(path, O_RDONLY | O_NONBLOCK);  // a pipe without a writer would be waited for
  if (!file.descriptor_.is_open()) fail_errno(path, "open");
  struct stat status = {};
  if (::fstat(file.descriptor_, &status) != 0) fail_errno(path, "open");
  if (!S_ISREG(status.st_mode)) fail<FileError>("file", "{} is not a regular file", path);
  return file;
}

File File::open_for_writing(const std::string& path) {
  File file(path, O_WRONLY);
  if (!file.descriptor_.is_open()) fail_errno(path, "open for writing");
  return file;
}

File File::create(const std::string& path) {
  // An NFS client that may also read completes a page before it writes a part of it, and writes all of the
  // page: over what another machine wrote there meanwhile.
  File file(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (!file.descriptor_.is_open()) fail_errno(path, "create");
  return file;
}

int64_t File::size() const {
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0) fail_errno(path_, "read the size of");
  return status.st_size;
}

void File::read_at(void* data, size_t bytes, int64_t offset) const {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n =
        uninterrupted([&] { return ::pread(descriptor_, to, std::min(bytes, kMaxTransfer), offset); });
    if (n < 0) fail_errno(path_, "read");
    if (n == 0) {
      fail<FileError>("file", "{} ends at byte {}, but {} {} expected: it is truncated", path_, offset,
                      counted(bytes, "more byte"), bytes == 1 ? "was" : "were");
    }
    to += n;
    offset += n;
    bytes -= static_cast<size_t>(n);
  }
}

void File::write_at(const void* data, size_t bytes, int64_t offset) {
  auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n =
        uninterrupted([&] { return ::pwrite(descriptor_, from, std::min(bytes, kMaxTransfer), offset); });
    if (n < 0) fail_errno(path_, "write");
    from += n;
    offset += n;
    bytes -= static_cast<size_t>(n);
  }
}

void File::write_uncached(const void* data, size_t bytes, int64_t offset) {
  const auto* from = static_cast<const char*>(data);
  const auto advance = [&](size_t done) {
    from += done, offset += static_cast<int64_t>(done), bytes -= done;
  };
  const auto write_cached = [&](size_t count) {
    if (count == 0) return;
    write_at(from, count, offset);
    write_behind(offset, static_cast<int64_t>(count));
    advance(count);
  };
  constexpr auto kWhole = static_cast<size_t>(kBlock);
  const size_t behind = static_cast<size_t>(offset) % kWhole;
  if (reinterpret_cast<uintptr_t>(from) % kWhole == behind) {
    write_cached(std::min(bytes, (kWhole - behind) % kWhole));
    advance(write_blocks(from, bytes / kWhole * kWhole, offset));
  }
  write_cached(bytes);
}

// Returns how much the device took: less where the file system, or the device with larger blocks, cannot.
size_t File::write_blocks(const char* from, size_t bytes, int64_t offset) {
  const int flags = ::fcntl(descriptor_, F_GETFL);
  if (bytes == 0 || flags < 0 || ::fcntl(descriptor_, F_SETFL, flags | O_DIRECT) != 0) return 0;
  size_t done = 0;
  int error = 0;
  while (done < bytes && error == 0) {
    const ssize_t n = ::pwrite(descriptor_, from + done, std::min(bytes - done, kMaxTransfer),
                               offset + static_cast<int64_t>(done));
    if (n > 0)
      done += static_cast<size_t>(n);
    else if (n == 0 || errno != EINTR)
      error = n == 0 ? EINVAL : errno;
  }
  ::fcntl(descriptor_, F_SETFL, flags);
  errno = error;
  if (error != 0 && error != EINVAL && error != EFAULT && error != EOPNOTSUPP) fail_errno(path_, "write");
  return done;
}

// Small pieces go together, since waiting for each would take longer than writing it.
void File::write_behind(int64_t offset, int64_t bytes) {
  constexpr int64_t kLeast = int64_t{8} << 20;
  fresh_ = fresh_.bytes() == 0 ? Span{offset, offset + bytes}
                               : Span{std::min(fresh_.begin, offset), std::max(fresh_.end, offset + bytes)};
  if (fresh_.bytes() < kLeast) return;
  // A failure is reported once: here, or by sync() if nothing has asked before.
  const auto sync_range = [&](const Span& span, unsigned flags) {
    if (uninterrupted([&] { return ::sync_file_range(descriptor_, span.begin, span.bytes(), flags); }) == 0)
      return;
    if (errno != ENOSYS && errno != EINVAL && errno != ESPIPE) fail_errno(path_, "write");
  };
  sync_range(fresh_, SYNC_FILE_RANGE_WRITE);
  if (on_the_way_.bytes() > 0) {
    sync_range(on_the_way_, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    ::posix_fadvise(descriptor_, on_the_way_.begin, on_the_way_.bytes(), POSIX_FADV_DONTNEED);
  }
  on_the_way_ = std::exchange(fresh_, {});
}

void File::reserve(int64_t bytes) {
  if (bytes > 0 && uninterrupted([&] { return ::fallocate(descriptor_, 0, 0, bytes); }) != 0) {
    // A file system that cannot reserve reports a full disk later, while writing.
    if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) fail_errno(path_, "reserve space for");
  }
  truncate(bytes);
}

void File::truncate(int64_t bytes) {
  if (uninterrupted([&] { return ::ftruncate(descriptor_, bytes); }) != 0)
    fail_errno(path_, "set the size of");
}

void File::sync() {
  if (uninterrupted([&] { return ::fsync(descriptor_); }) != 0) fail_errno(path_, "flush");
}

void File::close() {
  const int descriptor = descriptor_.release();
  if (descriptor >= 0 && ::close(descriptor) != 0 && errno != EINTR) fail_errno(path_, "close");
}

std::string read_file(const std::string& path, int64_t limit_bytes) {
  File file = File::open_for_reading(path);
  int64_t size = file.size();
  if (size > limit_bytes) {
    fail<FileError>("file", "{} has {} bytes, expected at most {}", path, size, limit_bytes);
  }
  std::string text(static_cast<size_t>(size), '\0');
  file.read_at(text.data(), text.size(), 0);
  return text;
}

void write_file_synced(const std::string& path, std::string_view content) {
  File file = File::create(path);
  file.write_at(content.data(), content.size(), 0);
  file.sync();
  file.close();
}

void rename_file(std::string_view where, const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return;
  const int code = errno;
  fail_for_system(code, where, fmt::format("cannot rename {} to {}", from, to));
}

}  // namespace ottava
