#include "apps/commands/json_file.h"

#include "core/io/output_file.h"

namespace ottava {

void write_json_file(const std::string& file, const Json& report) {
  if (!file.empty()) write_output_file(file, report.dump(1) + "\n");
}

}  // namespace ottava
