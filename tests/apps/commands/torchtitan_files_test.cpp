#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "apps/commands/plan_command.h"
#include "core/io/file.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

// Files with TorchTitan's keys, as its users have them: planned as they are, and every key used, noted or
// refused by name.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

const std::string kFolder = OTTAVA_SOURCE_DIR "/tests/apps/config/torchtitan/";

std::string plan_of(const std::string& file, int world_size, const std::vector<std::string>& overrides = {}) {
  std::ostringstream out;
  run_plan_command(
      {.file = file, .overrides = overrides, .world_size = world_size, .machine = {.device = "h200_sxm"}},
      out);
  return out.str();
}

/// "section.key" of every line of a TOML file.
std::vector<std::string> keys_of(const std::string& text) {
  std::vector<std::string> keys;
  std::string section;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch found;
    if (std::regex_match(line, found, std::regex(R"(\[([a-z0-9_.]+)\])"))) section = found[1];
    if (std::regex_search(line, found, std::regex("^([a-z0-9_]+) *=")))
      keys.push_back(section + "." + found[1].str());
  }
  return keys;
}

/// What becomes of a key, by the table of configs/keys.md; empty: not there.
std::string fate_of(const std::string& key) {
  static const std::string table = read_file(OTTAVA_SOURCE_DIR "/configs/keys.md");
  std::smatch found;
  const std::regex row("\\| `" + std::regex_replace(key, std::regex("\\."), "\\.") +
                       "` \\|[^|]*\\|[^|]*\\| ([a-z]+) \\|");
  return std::regex_search(table, found, row) ? found[1].str() : "";
}

struct UserFile {
  const char* name;
  int ranks;
  std::vector<const char*> plan;   ///< what it says
  std::vector<const char*> noted;  ///< keys that mean nothing here, as notes name them
};
const UserFile kFiles[] = {
    {"llama3_8b_cp8.toml",
     8,
     {"pp 1 x dp_replicate 1 x dp_shard 1 x cp 8 x tp 1 = 8", "1 sequence of 262144 tokens"},
     {"quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp", "compile.enable"}},
    {"llama3_405b_pp8.toml",
     512,
     {"pp 8 x dp_replicate 1 x dp_shard 8 x cp 1 x tp 8 = 512",
      "Pipeline: Interleaved1F1B, 8 ranks with 2 stages each, 32 micro-batches"},
     {"quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp", "compile.enable"}},
    {"llama3_405b_pp8_cp8.toml",
     512,
     {"pp 8 x dp_replicate 1 x dp_shard 1 x cp 8 x tp 8 = 512",
      "Pipeline: 1F1B, 8 ranks with 1 stage each, 8 micro-batches", "8 sequences of 262144 tokens"},
     {"parallelism.context_parallel_rotate_method",
      "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp", "compile.enable"}},
};

}  // namespace

TEST_CASE("files with TorchTitan's keys for context and pipeline parallel are planned unchanged") {
  for (const UserFile& file : kFiles) {
    INFO(file.name);
    const std::string plan = plan_of(kFolder + file.name, file.ranks);
    INFO(plan);
    for (const char* text : file.plan) CHECK_THAT(plan, Contains(text));
    CHECK_THAT(plan, Contains("\nFits: "));
    CHECK_THAT(plan, Contains("FSDP gathers"));
  }
}

TEST_CASE("every key of such a file is used, or noted by name") {
  for (const UserFile& file : kFiles) {
    INFO(file.name);
    const Config config = load_config(kFolder + file.name, {});
    std::vector<std::string> noted;
    for (const std::string& note : config.provenance.notes) {
      std::smatch key;
      if (std::regex_search(note, key, std::regex("([a-z0-9_.]+) ignored: "))) noted.push_back(key[1]);
    }
    CHECK(noted == std::vector<std::string>(file.noted.begin(), file.noted.end()));
    const std::vector<std::string> keys = keys_of(read_file(kFolder + file.name));
    CHECK(keys.size() > 20);
    for (const std::string& key : keys) {
      INFO(key);
      // Refused: for other values than TorchTitan's default, which this one is, or there were no plan.
      const std::string fate = fate_of(key);
      CHECK((fate == "used" || fate == "noted" || fate == "refused"));
    }
  }
}

TEST_CASE("what such a file may ask for and there is not is refused by name") {
  struct Change {
    const char *from, *to, *sentence;
  };
  const Change changes[] = {
      {"\"1F1B\"", "\"DualPipeV\"", "schedule DualPipeV is not supported: expected one of GPipe, 1F1B, "},
      {"pipeline_parallel_microbatch_size = 1", "pipeline_parallel_schedule_csv = \"mine.csv\"",
       "parallelism.pipeline_parallel_schedule_csv: mine.csv is not supported: no schedule is read from a "
       "file"},
      {"pipeline_parallel_microbatch_size = 1", "module_fqns_per_model_part = [\"layers.0\"]",
       "parallelism.module_fqns_per_model_part: [layers.0] is not supported: use "
       "parallelism.pipeline_parallel_split_points"},
      {"pipeline_parallel_microbatch_size = 1", "expert_parallel_degree = 2",
       "parallelism.expert_parallel_degree: 2 is not supported: the models are dense"},
      {"pipeline_parallel_microbatch_size = 1", "pipeline_parallel_microbatch_size = 3",
       "local_batch_size 8 is not a multiple of pipeline_parallel_microbatch_size 3 (remainder 2)"},
      {"pipeline_parallel_microbatch_size = 1", "pipeline_parallel_microbatch_size = 2",
       "schedule 1F1B on 8 ranks needs at least 8 micro-batches, got 4"},
      {"context_parallel_rotate_method = \"alltoall\"", "context_parallel_load_balancer = \"ptrr\"",
       "parallelism.context_parallel_load_balancer: ptrr is not supported: sequences are divided head-tail"},
      {"context_parallel_degree = 8", "context_parallel_degree = 3",
       "dp_shard -1 x cp 3 x tp 8 with dp_shard = -1 makes 192 x dp_shard, and 512 / 192 is not whole"},
      {"seq_len = 262144", "seq_len = 10000",
       "divides each sequence into 16 chunks, but training.seq_len 10000 does not give chunks of a multiple "
       "of 128 tokens"},
  };
  const std::string whole = read_file(kFolder + "llama3_405b_pp8_cp8.toml");
  const TemporaryFolder folder;
  for (const Change& change : changes) {
    INFO(change.to);
    const size_t at = whole.find(change.from);
    REQUIRE(at != std::string::npos);
    std::string text = whole;
    std::ofstream(folder / "f.toml") << text.replace(at, std::string(change.from).size(), change.to);
    CHECK_THAT(message_of([&] { plan_of(folder / "f.toml", 512); }), Contains(change.sentence));
  }
}

TEST_CASE("TorchTitan's own files are planned, and with context and pipeline parallel ranks") {
  const char* originals = std::getenv("OTTAVA_TORCHTITAN_CONFIGS");
  if (!originals) return skip("OTTAVA_TORCHTITAN_CONFIGS names no folder of TorchTitan's train_configs");
  const std::string large = (fs::path(originals) / "llama3_405b.toml").string(),
                    small = (fs::path(originals) / "llama3_8b.toml").string();
  CHECK_THAT(plan_of(large, 512), Contains("dp_shard 64 x cp 1 x tp 8 = 512"));
  CHECK_THAT(plan_of(large, 512,
                     {"--parallelism.pipeline_parallel_degree", "8", "--training.local_batch_size", "16",
                      "--parallelism.pipeline_parallel_schedule", "Interleaved1F1B"}),
             Contains("Pipeline: Interleaved1F1B, 8 ranks with 2 stages each, 16 micro-batches"));
  CHECK_THAT(plan_of(large, 512,
                     {"--parallelism.pipeline_parallel_degree", "8", "--training.local_batch_size", "8",
                      "--parallelism.context_parallel_degree", "8", "--training.seq_len", "262144"}),
             Contains("pp 8 x dp_replicate 1 x dp_shard 1 x cp 8 x tp 8 = 512") && Contains("\nFits: "));
  CHECK_THAT(plan_of(small, 8,
                     {"--parallelism.context_parallel_degree", "8", "--training.seq_len", "262144",
                      "--activation_checkpoint.mode", "full"}),
             Contains("cp 8 x tp 1 = 8") && Contains("\nFits: "));
}
