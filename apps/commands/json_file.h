#pragma once

#include <string>

#include "core/io/json.h"

namespace ottava {

/// Does what `--json FILE` asks for: writes the report as write_output_file() does, or nowhere if `file` is
/// empty. The file may be a device, such as /dev/stdout. Throws FileError.
void write_json_file(const std::string& file, const Json& report);

}  // namespace ottava
