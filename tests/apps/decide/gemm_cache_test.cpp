#include "apps/decide/gemm_cache.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "core/io/file.h"
#include "core/log.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

// Only the file; what runs do with it: rehearsal_test.cpp.

using namespace ottava;

namespace {

const std::string kLibrary = "cuBLASLt 13.1.0 on NVIDIA H200";
const std::string kAlgorithm(128, '7');

/// Sets a variable of the environment while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Variable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

std::vector<std::string> names(const Decisions& d) {
  std::vector<std::string> out;
  for (const Decisions::Entry& e : d.entries) out.push_back(e.name);
  return out;
}

}  // namespace

TEST_CASE(
    "the cache of algorithms has a file for each library and GPU, in the folder that the setting says") {
  CHECK(gemm_cache_file("off", kLibrary).empty());
  CHECK(gemm_cache_file("/data/plans", kLibrary) == "/data/plans/gemm-cublaslt-13.1.0-on-nvidia-h200.json");
  CHECK(gemm_cache_file("/data/plans", kLibrary) != gemm_cache_file("/data/plans", kLibrary + " NVL"));
  const Variable home("HOME", "/home/me");
  {
    const Variable cache("XDG_CACHE_HOME", "/fast/cache");
    CHECK(gemm_cache_file("auto", kLibrary).starts_with("/fast/cache/ottava/gemm-"));
  }
  const Variable cache("XDG_CACHE_HOME", nullptr);
  CHECK(gemm_cache_file("auto", kLibrary).starts_with("/home/me/.cache/ottava/gemm-"));
  const Variable none("HOME", nullptr);
  CHECK(gemm_cache_file("auto", kLibrary).empty());
}

TEST_CASE("what runs keep in the cache adds up; what is damaged or another library's is not used") {
  log::set_level(log::Level::error);
  const TemporaryFolder folder;
  const std::string file = folder / "deep/inside/plans.json";
  CHECK(read_gemm_cache(file, kLibrary) == Decisions{});
  write_gemm_cache(file, kLibrary, {});
  CHECK_FALSE(std::filesystem::exists(file));
  write_gemm_cache(file, kLibrary, {{"gemm b", kAlgorithm, "1 ms"}, {"gemm a", kAlgorithm, "2 ms"}});
  write_gemm_cache(file, kLibrary, {{"gemm c", kAlgorithm, "3 ms"}, {"gemm b", kAlgorithm, "4 ms"}});
  const Decisions kept = read_gemm_cache(file, kLibrary);
  CHECK(names(kept) == std::vector<std::string>{"gemm a", "gemm b", "gemm c"});
  CHECK(kept.find("gemm b")->reason == "4 ms");

  CHECK(read_gemm_cache(file, "cuBLASLt 13.2.0 on NVIDIA H200") == Decisions{});
  const std::string whole = read_file(file);
  for (const std::string& text :
       {whole.substr(0, whole.size() / 2), std::string(), std::string("[]"),
        to_json({.made_for = kept.made_for, .entries = {{"gemm a", "12zz", ""}}}),
        to_json({.made_for = kept.made_for, .entries = {{"attention.backend", kAlgorithm, ""}}})}) {
    std::ofstream(file, std::ios::trunc) << text;
    CHECK(read_gemm_cache(file, kLibrary) == Decisions{});
  }
  write_gemm_cache(file, kLibrary, {{"gemm d", kAlgorithm, "5 ms"}});
  CHECK(names(read_gemm_cache(file, kLibrary)) == std::vector<std::string>{"gemm d"});
  // A place that cannot be written ends nothing.
  write_gemm_cache(file + "/under/a/file.json", kLibrary, {{"gemm d", kAlgorithm, ""}});
}
