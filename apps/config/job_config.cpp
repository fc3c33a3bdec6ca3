#include "apps/config/job_config.h"

#include "core/config/section.h"

namespace ottava {

using config::Type;
using config::Value;

void declare(config::Section& s, JobConfig& c) {
  s.meaning("the experiment as a whole");
  s.field("dump_folder", c.dump_folder).meaning("folder that everything is written into");
  s.field("description", c.description).meaning("first line of the log");
  s.field("print_config", c.print_config).meaning("print the resolved configuration at start");
  s.field("save_config_file", c.save_config_file)
      .meaning("also write the resolved configuration to this file in dump_folder");
  s.foreign("config_file", Type::text).refused("name the file on the command line: ottava train FILE");
  s.foreign("custom_config_module", Value::of(std::string()))
      .refused("no Python module can be loaded; every key is in `ottava config --schema`");
  s.foreign("use_for_integration_test", Value::of(false)).noted("no test list is made from configurations");
  s.renamed("print_args", "job.print_config");
}

}  // namespace ottava
