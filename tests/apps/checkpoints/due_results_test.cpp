#include "apps/checkpoints/due_results.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;

namespace {

Config validating(const TemporaryFolder& folder) {
  Config c;
  c.job.dump_folder = folder.path();
  c.training.steps = 7;
  c.validation.enable = c.evaluation.enable = true;
  c.validation.freq = 2;
  c.validation.datasets.resize(2);
  c.validation.datasets[0].name = "books";
  c.validation.datasets[1].name = "web";
  c.evaluation.freq = 4;
  c.evaluation.tasks = {{.name = "riddles", .path = {"riddles.jsonl"}}};
  c.evaluation.prompts = {"Once"};
  return c;
}

constexpr const char* kBooks = R"({"step":4,"validation_metrics/books/loss":null,"non_finite":{}})";
constexpr const char* kRiddles = R"({"step":4,"evaluation_metrics/riddles/acc":0.5})";

}  // namespace

TEST_CASE("what is asked after a step follows from its number, and evaluation also follows the last one") {
  const TemporaryFolder folder;
  Config c = validating(folder);
  const std::vector<std::string> sets{"validation_metrics/books/loss", "validation_metrics/web/loss"},
      asked{"evaluation_metrics/riddles/acc", "samples"}, all{sets[0], sets[1], asked[0], asked[1]};
  CHECK(results_due(c, 1) == all);
  CHECK(results_due(c, 2) == sets);
  CHECK(results_due(c, 3).empty());
  CHECK(results_due(c, 4) == all);
  CHECK(results_due(c, 7) == asked);
  c.validation.datasets.clear();
  CHECK(results_due(c, 2) == std::vector<std::string>{"validation_metrics/loss"});
}

TEST_CASE("results are missing that metrics.jsonl does not have at their step") {
  const TemporaryFolder folder;
  Config c = validating(folder);
  CHECK(results_missing(c, 4) == results_due(c, 4));
  std::ofstream(folder / "metrics.jsonl") << R"({"step":2,"validation_metrics/web/loss":3})"
                                          << "\n"
                                          << kBooks << "\n\n"
                                          << kRiddles << "\n"
                                          << R"({"step":4,"samp)";
  CHECK(results_missing(c, 3).empty());
  CHECK(results_missing(c, 4) == std::vector<std::string>{"validation_metrics/web/loss", "samples"});
  CHECK(results_missing(c, 6) == results_due(c, 6));
  c.checkpoint.load_only = true;
  CHECK(results_missing(c, 4).empty());
  c.checkpoint.load_only = false;
  c.metrics.enable_json_lines = false;
  CHECK(results_missing(c, 4).empty());
}

TEST_CASE("of the metrics of a long run only the end is read, however long the lines of its last step are") {
  const TemporaryFolder folder;
  const Config c = validating(folder);
  const std::string path = folder / "metrics.jsonl";
  std::ofstream(path).close();
  std::filesystem::resize_file(path, uintmax_t{1} << 41);  // more than any memory: a hole
  std::ofstream(path, std::ios::app) << "\n"
                                     << R"({"step":3})"
                                     << "\n"
                                     << kBooks << "\n"
                                     << R"({"step":4,"samples":")" << std::string(300'000, 'x') << "\"}\n"
                                     << kRiddles << "\n";
  CHECK(results_missing(c, 4) == std::vector<std::string>{"validation_metrics/web/loss"});
}
