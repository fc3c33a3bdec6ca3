#pragma once

#include <string>
#include <string_view>

#include "core/io/json.h"

namespace ottava {

/// What `--json FILE` asks for: the report in that file, or in none where `file` is empty. The file may be a
/// device, as /dev/stdout. Throws FileError in the name of `where`.
void write_json_file(std::string_view where, const std::string& file, const Json& report);

}  // namespace ottava
