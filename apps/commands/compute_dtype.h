#pragma once

#include <string>
#include <string_view>

#include "core/dtype.h"
#include "core/error.h"

namespace ottava {

/// The type in which a command that runs a model computes, from its option --dtype. Throws ConfigError in the
/// command's name.
inline DType compute_dtype(std::string_view command, const std::string& name) {
  for (const std::string_view known : {"bfloat16", "float32", "bf16", "f32"})
    if (name == known) return parse_dtype(name);
  fail<ConfigError>(command, "--dtype is {}, expected bfloat16 or float32", name);
}

}  // namespace ottava
