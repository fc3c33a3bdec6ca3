#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "apps/commands/plan_command.h"
#include "core/io/file.h"
#include "tests/support/catch.h"

// Every shipped configuration, planned for the ranks that its first lines name.

using namespace ottava;
namespace fs = std::filesystem;

TEST_CASE("every shipped configuration has a plan that fits a GPU of 80 GB") {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(OTTAVA_SOURCE_DIR) / "configs")) {
    if (entry.path().extension() != ".yaml") continue;
    const std::string file = entry.path().string(), text = read_file(file);
    INFO(file);
    names.insert(entry.path().stem().string());
    CHECK(text.starts_with("# "));
    PlanCommand command{.file = file, .machine = {.device = "h100_sxm"}};  // training.device may be auto
    std::smatch ranks;
    if (std::regex_search(text, ranks, std::regex("--world-size ([0-9]+)")))
      command.world_size = std::stoi(ranks[1]);
    std::ostringstream out;
    run_plan_command(command, out);
    std::smatch memory;
    const std::string plan = out.str();
    INFO(plan);
    CHECK(plan.find("\nFits: ") != std::string::npos);
    REQUIRE(std::regex_search(plan, memory, std::regex("Memory per rank: ([0-9.]+) GiB")));
    CHECK(std::stod(memory[1]) < 76);
  }
  for (const char* name :
       {"debug", "smoke_fp8", "llama_60m", "llama_1b", "llama_3b", "llama3_8b", "llama3_70b", "llama3_405b"})
    CHECK(names.count(name) == 1);
}
