#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// Loaded before a program (LD_PRELOAD): makes calls of the C library on files fail. OTTAVA_FAILING_CALLS says
// which: "CALL ERRNO FIRST COUNT PAUSE PART": of the calls CALL on paths that contain PART, those from the
// FIRST on, COUNT of them, fail with ERRNO; of the call `stale` it is no `open` that fails, but every `pread`
// of what it has opened. A pause of ten seconds, after which a call is made again, takes
// PAUSE milliseconds.

namespace {

struct Wanted {
  char call[16] = {}, part[256] = {};
  int error = 0, first = 0, count = 0, pause_ms = 0;
  Wanted() {
    const char* text = std::getenv("OTTAVA_FAILING_CALLS");
    constexpr int kFields = 6;
    if (text == nullptr ||
        std::sscanf(text, "%15s %d %d %d %d %255s", call, &error, &first, &count, &pause_ms, part) != kFields)
      call[0] = '\0';
  }
};

const Wanted& wanted() {
  static const Wanted once;
  return once;
}

bool fails(const char* call, const char* path) {
  const Wanted& w = wanted();
  static std::atomic<int> calls = 0;
  if (std::strcmp(call, w.call) != 0 || std::strstr(path, w.part) == nullptr) return false;
  const int number = ++calls;
  if (number < w.first || number >= w.first + w.count) return false;
  errno = w.error;
  return true;
}

bool fails(const char* call, int descriptor) {
  char link[64], path[4096] = {};
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  return ::syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1) > 0 && fails(call, path);
}

constexpr int kDescriptors = 1024;
std::atomic<bool> is_stale[kDescriptors];

template <class... Arguments>
int system_call(long number, Arguments... arguments) {
  return static_cast<int>(::syscall(number, arguments...));
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  if (fails("open", path)) return -1;
  const int descriptor = system_call(SYS_openat, AT_FDCWD, path, flags, mode);
  if (descriptor >= 0 && descriptor < kDescriptors) is_stale[descriptor] = fails("stale", path);
  return descriptor;
}
int stat(const char* path, struct stat* status) noexcept {
  return fails("stat", path) ? -1 : system_call(SYS_newfstatat, AT_FDCWD, path, status, 0);
}
int lstat(const char* path, struct stat* status) noexcept {
  return fails("lstat", path) ? -1 : system_call(SYS_newfstatat, AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}
int access(const char* path, int mode) noexcept {
  return fails("access", path) ? -1 : system_call(SYS_faccessat, AT_FDCWD, path, mode);
}
int mkdir(const char* path, mode_t mode) noexcept {
  return fails("mkdir", path) ? -1 : system_call(SYS_mkdirat, AT_FDCWD, path, mode);
}
int rename(const char* from, const char* to) noexcept {
  return fails("rename", from) ? -1 : system_call(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
}
ssize_t pread(int descriptor, void* to, size_t bytes, off_t at) {
  if (descriptor >= 0 && descriptor < kDescriptors && is_stale[descriptor]) {
    errno = wanted().error;
    return -1;
  }
  return fails("pread", descriptor) ? -1 : ::syscall(SYS_pread64, descriptor, to, bytes, at);
}
ssize_t pwrite(int descriptor, const void* from, size_t bytes, off_t at) {
  return fails("pwrite", descriptor) ? -1 : ::syscall(SYS_pwrite64, descriptor, from, bytes, at);
}
int fsync(int descriptor) { return fails("fsync", descriptor) ? -1 : system_call(SYS_fsync, descriptor); }
int flock(int descriptor, int operation) noexcept {
  return fails("flock", descriptor) ? -1 : system_call(SYS_flock, descriptor, operation);
}
int ftruncate(int descriptor, off_t bytes) noexcept {
  return fails("ftruncate", descriptor) ? -1 : system_call(SYS_ftruncate, descriptor, bytes);
}
char* realpath(const char* path, char* to) noexcept {
  static const auto real = reinterpret_cast<char* (*)(const char*, char*)>(::dlsym(RTLD_NEXT, "realpath"));
  return fails("realpath", path) ? nullptr : real(path, to);
}
dirent* readdir(DIR* folder) {
  static const auto real = reinterpret_cast<dirent* (*)(DIR*)>(::dlsym(RTLD_NEXT, "readdir"));
  return fails("readdir", ::dirfd(folder)) ? nullptr : real(folder);
}
int glob(const char* pattern, int flags, int (*stops_at)(const char*, int), glob_t* found) {
  static const auto real = reinterpret_cast<decltype(&glob)>(::dlsym(RTLD_NEXT, "glob"));
  return fails("glob", pattern) && stops_at(pattern, errno) != 0 ? GLOB_ABORTED
                                                                 : real(pattern, flags, stops_at, found);
}
int nanosleep(const timespec* time, timespec* rest) {
  const timespec shorter{wanted().pause_ms / 1000, wanted().pause_ms % 1000 * 1'000'000L};
  return system_call(SYS_nanosleep, time->tv_sec == 10 ? &shorter : time, rest);
}

}  // extern "C"
