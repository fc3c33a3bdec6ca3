#include "core/cpu/isa.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace ottava;
using namespace ottava::cpu;

namespace {

/// The features that scripts/cmake/cpu_kernels.cmake compiles a set's kernels for; those of the sets it
/// extends only where it names them again.
std::vector<std::string> features_of(const std::string& set) {
  const std::string text = read_file(OTTAVA_SOURCE_DIR "/scripts/cmake/cpu_kernels.cmake"),
                    start = "set(OTTAVA_ISA_FLAGS_" + set + " ";
  const size_t begin = text.find(start) + start.size();
  std::istringstream options(text.substr(begin, text.find(')', begin) - begin));
  std::vector<std::string> names;
  for (std::string option; options >> option;) {
    if (option.starts_with("-m") && option.find('=') == std::string::npos) names.push_back(option.substr(2));
  }
  return names;
}

Isa best_without(std::vector<std::string> features, const std::string& missing) {
  std::erase(features, missing);
  return best_isa(std::vector<std::string_view>(features.begin(), features.end()));
}

}  // namespace

TEST_CASE("an instruction set is taken only where every feature is there that its kernels are compiled for") {
  std::vector<std::string> avx2 = features_of("avx2"), avx512 = features_of("avx512");
  REQUIRE(avx2.size() >= 5);
  REQUIRE(avx512.size() >= 10);
  for (std::vector<std::string>* features : {&avx2, &avx512}) features->push_back("popcnt");
  CHECK(best_without(avx2, "") == Isa::avx2);
  CHECK(best_without(avx512, "") == Isa::avx512);
  for (const std::string& missing : avx2) {
    INFO(missing);
    CHECK(best_without(avx2, missing) == Isa::baseline);
  }
  std::vector<std::string> all = avx512;
  all.push_back("avx512fp16");
  CHECK(best_without(all, "") == Isa::avx512_fp16);
  for (const std::string& missing : avx512) {
    INFO(missing);
    CHECK(best_without(all, missing) == (missing.starts_with("avx512") ? Isa::avx2 : Isa::baseline));
  }
  CHECK(best_isa({}) == Isa::baseline);
}

#if defined(__x86_64__)
TEST_CASE("the set of this machine is the best of the features that the kernel lists") {
  if (const char* wish = std::getenv("OTTAVA_CPU_ISA"); wish && *wish)
    return test::skip("OTTAVA_CPU_ISA names the set");
  std::ifstream lines("/proc/cpuinfo");
  std::vector<std::string> names;
  for (std::string line; names.empty() && std::getline(lines, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream flags(line.substr(line.find(':') + 1));
    for (std::string name; flags >> name;) {
      if (name == "bmi1") name = "bmi";
      names.push_back(name);
    }
  }
  REQUIRE(!names.empty());
  // Whether the compiler knows avx512_fp16 is not known here.
  const Isa best = best_isa(std::vector<std::string_view>(names.begin(), names.end()));
  CHECK(std::min(isa(), Isa::avx512) == std::min(best, Isa::avx512));
}
#endif
