#pragma once

#include <string>

#include "core/config/section.h"

namespace ottava {

/// Keys of TorchTitan's files that mean nothing here, as one table in YAML: a list of reasons, each with the
/// keys that are `noted` or `refused` for it, by section, with their defaults. `a|b|c`: one of these, the
/// first being the default. `?text`, `?texts`: null by default.
extern const char* const kForeignKeys;

/// Adds these keys to the sections of `root`, with sections that are missing, and the old names of sections.
void declare_foreign_keys(config::Section& root);

}  // namespace ottava
