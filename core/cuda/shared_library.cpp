#include "core/cuda/shared_library.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <vector>

#include "core/error.h"
#include "core/text/split.h"

namespace ottava::cuda {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// Directories in order of preference; some are patterns.
std::vector<std::string> places() {
  std::vector<std::string> list;
  const std::string own = environment("OTTAVA_CUDA_LIBRARIES");
  for (std::string_view place : split_text(own, ':')) {
    if (!place.empty()) list.emplace_back(place);
  }
  if (const std::string home = environment("CUDA_HOME"); !home.empty()) list.push_back(home + "/lib64");
  list.push_back("/usr/local/cuda/lib64");
  std::vector<std::string> prefixes;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const std::string prefix = environment(name); !prefix.empty()) prefixes.push_back(prefix);
  }
  if (const std::string home = environment("HOME"); !home.empty()) prefixes.push_back(home + "/.local");
  prefixes.insert(prefixes.end(), {"/usr/local", "/usr"});
  for (const std::string& prefix : prefixes) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      list.push_back(fmt::format("{}/lib/python3*/{}/nvidia/*/lib", prefix, packages));
    }
  }
  return list;
}

}  // namespace

SharedLibrary::SharedLibrary(const std::string& file, std::string meaning, Symbols symbols)
    : file_(file), meaning_(std::move(meaning)) {
  const int flags = RTLD_NOW | (symbols == Symbols::global ? RTLD_GLOBAL : RTLD_LOCAL);
  handle_ = dlopen(file.c_str(), flags);
  std::string searched = "the loader's path";
  for (const std::string& place : places()) {
    if (handle_) return;
    searched += ", " + place;
    glob_t found{};
    if (glob((place + "/" + file).c_str(), 0, nullptr, &found) == 0) {
      for (size_t i = 0; i < found.gl_pathc && !handle_; ++i) handle_ = dlopen(found.gl_pathv[i], flags);
    }
    globfree(&found);
  }
  if (handle_) return;
  fail<DeviceError>(
      "cuda", "{} ({}) was not found: install it, or set OTTAVA_CUDA_LIBRARIES to its folder; searched {}",
      meaning_, file_, searched);
}

void* SharedLibrary::symbol(const char* name) const {
  void* address = dlsym(handle_, name);
  if (!address)
    fail<DeviceError>("cuda", "{} ({}) has no function {}, so it is too old: install a newer version",
                      meaning_, file_, name);
  return address;
}

}  // namespace ottava::cuda
