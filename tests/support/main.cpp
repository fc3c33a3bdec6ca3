#define CATCH_CONFIG_RUNNER
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>

#include "core/cpu/dnnl_adapter.h"
#include "core/cpu/isa.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

// What every test program does besides running Catch's cases: which cases ran, failed and were skipped goes
// into a file, a case that asserts nothing has failed, and a program that is to use instructions this machine
// lacks is skipped whole.

namespace {

/// CTest's SKIP_RETURN_CODE has the same value.
constexpr int kSkipped = 77;

/// Writes a line at once and whole, also where several programs write.
void account(const std::string& line) {
  if (const char* path = std::getenv("OTTAVA_TEST_CASES"))
    std::ofstream(path, std::ios::app) << line + '\n' << std::flush;
}

void say_skipped(const std::string& what, std::string_view reason) {
  std::cout << "SKIPPED: " << what << ": " << reason << std::endl;
  account("skipped\t" + what + '\t' + std::string(reason));
}

bool case_was_skipped = false, a_case_proved_nothing = false;

#if __has_include(<catch2/catch_all.hpp>)
using Listener = Catch::EventListenerBase;
std::string name_of(const Catch::TestCaseStats& stats) { return stats.testInfo->name; }
#else
using Listener = Catch::TestEventListenerBase;
std::string name_of(const Catch::TestCaseStats& stats) { return stats.testInfo.name; }
#endif

struct Cases : Listener {
  using Listener::Listener;
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    if (!case_was_skipped) account("ran\t" + name_of(stats));
    const bool proves_nothing = stats.totals.assertions.total() == 0 && !case_was_skipped;
    if (proves_nothing) std::cout << "FAILED: " << name_of(stats) << ": it asserts nothing" << std::endl;
    if (proves_nothing || !stats.totals.assertions.allOk()) account("failed\t" + name_of(stats));
    a_case_proved_nothing |= proves_nothing;
    case_was_skipped = false;
  }
};
CATCH_REGISTER_LISTENER(Cases)

bool machine_has(const std::string& flag) {
  std::ifstream cpus("/proc/cpuinfo");
  for (std::string word; cpus >> word;) {
    if (word == flag) return true;
  }
  return false;
}

/// Why a run with the instructions that OTTAVA_CPU_ISA and DNNL_MAX_CPU_ISA name shows nothing here; else
/// empty.
std::string no_use_of_instructions() {
  try {
    ottava::cpu::isa();
  } catch (const ottava::DeviceError& error) {
    return error.what();
  }
  const char* variable = std::getenv("DNNL_MAX_CPU_ISA");
  const std::string_view wish = variable ? variable : "";
  if (wish == "AVX512_CORE_AMX" && !ottava::cpu::dnnl_uses_amx()) return "this machine has no AMX";
  if (wish == "AVX512_CORE_BF16" && !ottava::cpu::dnnl_multiplies_bf16())
    return "this machine has no AVX512-BF16";
  if (wish == "AVX512_CORE_AMX" || (wish == "AVX512_CORE_BF16" && !machine_has("amx_tile")) ||
      (wish == "AVX512_CORE" && !machine_has("avx512_bf16")) || (wish == "AVX2" && !machine_has("avx512f")))
    return "it is what this machine takes without being told, in the run without a set";
  return {};
}

// What started the tests may ignore or block signals: a shell's background SIGINT, Python SIGXFSZ. Under
// nohup SIGHUP stays ignored.
void take_signals_as_usual() {
  for (const int signal : {SIGCHLD, SIGINT, SIGPIPE, SIGTERM, SIGUSR1, SIGXFSZ}) ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Ranks that are threads of one program have files as ranks of many have.
void open_as_many_files_as_allowed() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Tests write the paths of their folders into commands of a shell and into YAML, which would split these.
void leave_folder_that_is_no_word() {
  constexpr const char* kSplitting = "[] \t\r\n'\"`\\$&|;<>()*?{},";  // those of shell_words.cmake
  const char* folder = std::getenv("TMPDIR");
  if (!folder || std::string_view(folder).find_first_of(kSplitting) == std::string_view::npos) return;
  std::cout << "TMPDIR is '" << folder << "', no word of a shell: tests write into /tmp" << std::endl;
  ::setenv("TMPDIR", "/tmp", 1);
}

// Patterns of names stand in CMakeLists.txt and scripts: one that matches no case any more fails.
void fail_where_nothing_matches(Catch::ConfigData& config) {
#if __has_include(<catch2/catch_all.hpp>)
  constexpr auto kNothing = Catch::WarnAbout::UnmatchedTestSpec;
#else
  constexpr auto kNothing = Catch::WarnAbout::NoTests;
#endif
  config.warnings = static_cast<Catch::WarnAbout::What>(config.warnings | kNothing);
}

}  // namespace

void ottava::test::skip(std::string_view reason) {
  say_skipped(Catch::getResultCapture().getCurrentTestName(), reason);
  case_was_skipped = true;
}

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF,
               BUFSIZ);  // what a case said is there when the next one ends the program
  if (const std::string reason = no_use_of_instructions(); !reason.empty()) {
    const char* set = std::getenv("DNNL_MAX_CPU_ISA");
    const std::string program = std::filesystem::path(argv[0]).filename();
    say_skipped(set ? program + " with " + set : program, reason);
    return kSkipped;
  }
  take_signals_as_usual();
  open_as_many_files_as_allowed();
  leave_folder_that_is_no_word();
  Catch::Session session;
  fail_where_nothing_matches(session.configData());
  const int failed = session.run(argc, argv);
  return failed == 0 && a_case_proved_nothing ? EXIT_FAILURE : failed;
}
