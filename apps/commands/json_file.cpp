#include "apps/commands/json_file.h"

#include <fstream>

#include "core/error.h"

namespace ottava {

void write_json_file(std::string_view where, const std::string& file, const Json& report) {
  if (file.empty()) return;
  std::ofstream stream(file);
  stream << report.dump(1) << '\n';
  if (!stream.flush()) fail<FileError>(where, "cannot write {}", file);
}

}  // namespace ottava
