// Runs LLVMFuzzerTestOneInput without libFuzzer: every file of a corpus folder, which must be accepted
// (tests/fuzz/accepted.h), then deterministic mutations of them.
//   TARGET CORPUS ITERATIONS            the short run of the tests
//   TARGET CORPUS ITERATIONS --dump I   after a failure: writes input number I to `fuzz-input`, runs it alone
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

volatile std::sig_atomic_t current_input = 0;

void say_where(int signal) {
  char text[] = "input number           failed: rerun with --dump and that number\n";
  int64_t n = current_input;
  for (int i = 21; n > 0 && i > 12; --i, n /= 10) text[i] = static_cast<char>('0' + n % 10);
  (void)!write(2, text, sizeof text - 1);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

/// SplitMix64: the same inputs on every machine.
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(next() % n); }
};

constexpr size_t kMaxInput = size_t{1} << 20;

/// Values at which length and index arithmetic breaks, binary and as text.
const char* const kTexts[] = {"0",
                              "-1",
                              "1e999",
                              "4294967296",
                              "9223372036854775807",
                              "18446744073709551616",
                              "null",
                              "\"",
                              "{",
                              "[",
                              "]",
                              "}",
                              "\\u0000",
                              "\xff",
                              "\n",
                              ""};
const uint64_t kNumbers[] = {0,
                             1,
                             0x7f,
                             0x80,
                             0xff,
                             0x7fff,
                             0xffff,
                             0x7fffffff,
                             0x80000000,
                             0xffffffff,
                             0x7fffffffffffffff,
                             0x8000000000000000,
                             0xffffffffffffffff};

void mutate(std::string& s, const std::vector<std::string>& seeds, Random& random) {
  size_t at = random.below(s.size() + 1), length = random.below(std::min<size_t>(s.size() - at, 64) + 1);
  switch (random.below(9)) {
    case 0:
      if (at < s.size()) s[at] = static_cast<char>(s[at] ^ (1u << random.below(8)));
      break;
    case 1:
      if (at < s.size()) s[at] = static_cast<char>(random.next());
      break;
    case 2:
      s.erase(at, length);
      break;
    case 3:
      s.insert(at, std::string(s, at, length));
      break;
    case 4:
      s.resize(at);
      break;
    case 5:
      s.replace(at, length, kTexts[random.below(std::size(kTexts))]);
      break;
    case 6: {
      uint64_t number = kNumbers[random.below(std::size(kNumbers))];
      size_t width = size_t{1} << random.below(4);
      s.replace(at, std::min(width, s.size() - at), reinterpret_cast<const char*>(&number), width);
      break;
    }
    case 7: {
      const std::string& other = seeds[random.below(seeds.size())];
      size_t from = random.below(other.size() + 1);
      s.replace(at, length, other, from, random.below(256));
      break;
    }
    case 8:
      std::swap_ranges(s.begin() + at, s.begin() + at + std::min(length, s.size() - at - length),
                       s.begin() + at + length);
      break;
  }
  if (s.size() > kMaxInput) s.resize(kMaxInput);
}

std::vector<std::filesystem::path> files_of(const char* folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<std::string> read_all(const std::vector<std::filesystem::path>& paths) {
  std::vector<std::string> seeds;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return seeds;
}

/// Input i is a seed itself while there are seeds, then a seed with one to eight mutations.
std::string make_input(size_t i, const std::vector<std::string>& seeds) {
  if (i < seeds.size()) return seeds[i];
  Random random{0x6f747461u + i * 0x632be59bd9b4e019u};
  std::string s = seeds[random.below(seeds.size())];
  for (size_t n = 1 + random.below(8); n > 0; --n) mutate(s, seeds, random);
  return s;
}

void run(const std::string& input) {
  // A copy of the exact size: under the address sanitizer a read past the end is seen.
  std::vector<uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

/// Whether the target took the seed as its name says.
bool is_as_named(const std::filesystem::path& seed) {
  const bool is_refused = seed.filename().string().starts_with("refused_");
  if (ottava::test::is_accepted != is_refused) return true;
  std::fprintf(stderr, "seed %s is %s: mend it, or rename it\n", seed.c_str(),
               is_refused ? "accepted, although its name says refused_" : "refused");
  return false;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s CORPUS ITERATIONS [--dump NUMBER]\n", argv[0]);
    return 2;
  }
  const std::vector<std::filesystem::path> files = files_of(argv[1]);
  const std::vector<std::string> seeds = read_all(files);
  if (seeds.empty()) {
    std::fprintf(stderr, "corpus folder %s has no files\n", argv[1]);
    return 2;
  }
  if (argc == 5 && std::string(argv[3]) == "--dump") {
    std::string input = make_input(std::strtoull(argv[4], nullptr, 10), seeds);
    std::ofstream("fuzz-input", std::ios::binary) << input;
    run(input);
    return 0;
  }
  for (int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGBUS, SIGILL}) std::signal(signal, say_where);
  size_t total = seeds.size() + std::strtoull(argv[2], nullptr, 10);
  for (size_t i = 0; i < total; ++i) {
    current_input = static_cast<std::sig_atomic_t>(i);
    ottava::test::is_accepted = false;
    run(make_input(i, seeds));
    if (i < seeds.size() && !is_as_named(files[i])) return 1;
  }
  std::printf("%zu inputs (%zu from the corpus): all survived\n", total, seeds.size());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "input number %d threw: %s\n", static_cast<int>(current_input), error.what());
  return 1;
}
