#pragma once

#include <string>
#include <string_view>

#include "core/io/json.h"

namespace ottava {

/// Does what `--json FILE` asks for: writes the report to the file, or nowhere if `file` is empty. The file
/// may be a device, such as /dev/stdout. Throws FileError in the name of `where`.
void write_json_file(std::string_view where, const std::string& file, const Json& report);

}  // namespace ottava
