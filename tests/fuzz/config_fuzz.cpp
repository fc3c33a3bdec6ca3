// Configurations: any bytes as YAML, as TOML and as a command line either load or give an Error; what loads
// is printed and loads again as the same.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "apps/config/config.h"
#include "core/error.h"
#include "tests/fuzz/accepted.h"
#include "tests/support/temporary_folder.h"

namespace {

ottava::Config load_text(const std::string& text, const char* name) {
  static const ottava::TemporaryFolder folder;
  std::ofstream(folder / name, std::ios::binary) << text;
  return ottava::load_config(folder / name);
}

void check_round_trip(const ottava::Config& config) {
  if (!(load_text(ottava::print_config(config, true), "printed.yaml") == config)) std::abort();
}

template <class F>
void run(F&& load) {
  ottava::Config config;
  try {
    config = load();
  } catch (const ottava::Error&) {
    return;
  }
  ottava::test::is_accepted = true;
  check_round_trip(config);  // an Error here is a defect too, and ends the run
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  run([&] { return load_text(text, "fuzz.yaml"); });
  run([&] { return load_text(text, "fuzz.toml"); });
  std::vector<std::string> arguments;
  std::stringstream lines(text);
  for (std::string line; arguments.size() < 64 && std::getline(lines, line);) arguments.push_back(line);
  run([&] { return ottava::load_config("", arguments); });
  return 0;
}
