#include "apps/decide/gemm_cache.h"

#include <filesystem>
#include <fstream>

#include "core/io/file.h"
#include "core/log.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/variable.h"

// Only the file; what runs do with it: rehearsal_test.cpp.

using namespace ottava;

namespace {

const std::string kLibrary = "cuBLASLt 13.1.0 on NVIDIA H200";
const std::string kAlgorithm(128, '7');

std::vector<std::string> names(const Decisions& d) {
  std::vector<std::string> out;
  for (const Decisions::Entry& e : d.entries) out.push_back(e.name);
  return out;
}

}  // namespace

TEST_CASE(
    "the cache of algorithms has a file for each library and GPU, in the folder that the setting says") {
  CHECK(gemm_cache("off", kLibrary).file().empty());
  CHECK(gemm_cache("/data/plans", kLibrary).file() == "/data/plans/gemm-cublaslt-13.1.0-on-nvidia-h200.json");
  CHECK(gemm_cache("/data/plans", kLibrary).file() != gemm_cache("/data/plans", kLibrary + " NVL").file());
  const Variable home("HOME", "/home/me");
  {
    const Variable cache("XDG_CACHE_HOME", "/fast/cache");
    CHECK(gemm_cache("auto", kLibrary).file().starts_with("/fast/cache/ottava/gemm-"));
  }
  for (const char* ignored : {"", ".", "cache", "~/cache"}) {
    const Variable cache("XDG_CACHE_HOME", ignored);
    CHECK(gemm_cache("auto", kLibrary).file().starts_with("/home/me/.cache/ottava/gemm-"));
  }
  const Variable cache("XDG_CACHE_HOME", nullptr);
  CHECK(gemm_cache("auto", kLibrary).file().starts_with("/home/me/.cache/ottava/gemm-"));
  const Variable none("HOME", nullptr);
  CHECK(gemm_cache("auto", kLibrary).file().empty());
}

TEST_CASE("what runs keep in the cache adds up; what is damaged or another library's is not used") {
  log::set_level(log::Level::error);
  const TemporaryFolder folder;
  const MeasurementCache cache = gemm_cache(folder / "deep/inside", kLibrary);
  const std::string& file = cache.file();
  CHECK(cache.read() == Decisions{});
  cache.write({});
  CHECK_FALSE(std::filesystem::exists(file));
  cache.write({{"gemm b", kAlgorithm, "1 ms"}, {"gemm a", kAlgorithm, "2 ms"}});
  cache.write({{"gemm c", kAlgorithm, "3 ms"}, {"gemm b", kAlgorithm, "4 ms"}});
  const Decisions kept = cache.read();
  CHECK(names(kept) == std::vector<std::string>{"gemm a", "gemm b", "gemm c"});
  CHECK(kept.find("gemm b")->reason == "4 ms");

  const MeasurementCache other = gemm_cache(folder / "deep/inside", "cuBLASLt 13.2.0 on NVIDIA H200");
  std::filesystem::copy_file(file, other.file());
  CHECK(other.read() == Decisions{});
  const std::string whole = read_file(file);
  for (const std::string& text :
       {whole.substr(0, whole.size() / 2), std::string(), std::string("[]"),
        to_json({.made_for = kept.made_for, .entries = {{"gemm a", "12zz", ""}}}),
        to_json({.made_for = kept.made_for, .entries = {{"attention.backend", kAlgorithm, ""}}})}) {
    std::ofstream(file, std::ios::trunc) << text;
    CHECK(cache.read() == Decisions{});
  }
  cache.write({{"gemm d", kAlgorithm, "5 ms"}});
  CHECK(names(cache.read()) == std::vector<std::string>{"gemm d"});
  // A place that cannot be written ends nothing.
  gemm_cache(file + "/under", kLibrary).write({{"gemm d", kAlgorithm, ""}});
}
