#include <filesystem>

#include "apps/config/config.h"
#include "apps/config/outputs.h"
#include "core/data/data_file.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;

TEST_CASE(
    "whatever a run writes is no data where its folder is one of data, also for who does not know the run") {
  const TemporaryFolder folder;
  Config c;
  c.job.dump_folder = folder.path();
  c.metrics.enable_json_lines = c.metrics.enable_tensorboard = true;
  c.checkpoint.enable = c.checkpoint.load_only = true;
  c.profiling.enable_profiling = true;
  c.comm.trace_buf_size = 1;
  folder.write("text.txt", "x");
  folder.write(".lock", "");
  for (const char* name : {"decisions.json", "metrics.jsonl", "metrics.rank3.jsonl", "events.jsonl"})
    folder.write(name, "{}\n");
  int folders = 0;
  for (const std::string& written : output_folders(c)) {
    const std::string inside = std::filesystem::path(written).lexically_relative(folder.path()).string();
    if (inside == ".") continue;
    folder.write(inside + "/a.jsonl", "{}\n");
    ++folders;
  }
  CHECK(folders == 6);
  const auto files = [&](const data::LeavesOut& leaves_out) {
    return data::find_data_files({folder.path()}, {}, leaves_out).size();
  };
  CHECK(files({}) == 1);
  std::filesystem::remove(folder / ".lock");  // as if it were another's
  CHECK(files(own_outputs(c)) == 1);
  CHECK(files({}) > 1);
}
