#pragma once

#include <string>
#include <string_view>

#include "core/dtype.h"
#include "core/error.h"

namespace ottava {

/// The type in which a command that runs a model computes, from its option --dtype. Throws ConfigError in the
/// command's name.
inline DType compute_dtype(std::string_view command, const std::string& name) {
  if (name == "bfloat16" || name == "bf16") return DType::bf16;
  if (name == "float32" || name == "f32") return DType::f32;
  fail<ConfigError>(command, "--dtype is {}, expected bfloat16 or float32", name);
}

}  // namespace ottava
