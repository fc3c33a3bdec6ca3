#include "apps/config/job_config.h"

#include <filesystem>

#include "core/config/section.h"

namespace ottava {

std::string JobConfig::in_dump_folder(const std::string& name) const {
  return (std::filesystem::path(dump_folder) / name).string();
}

void declare(config::Section& s, JobConfig& c) {
  s.meaning("the run as a whole");
  s.field("dump_folder", c.dump_folder,
          "output folder (checkpoints, metrics, traces), relative to the working directory");
  s.field("description", c.description, "description of the run, printed in the log");
  s.field("print_config", c.print_config, "print the resolved configuration at startup");
  s.field("save_config_file", c.save_config_file,
          "also write the resolved configuration to this file, inside dump_folder unless its path leads "
          "elsewhere; null: write none");
  s.renamed("print_args", "job.print_config");
}

}  // namespace ottava
