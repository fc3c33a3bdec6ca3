#pragma once

#include <string>
#include <string_view>

#include "apps/step/training_engine.h"

namespace ottava {

inline constexpr std::string_view kHistoryName = "float8_history.json";

/// State of recipe `delayed` in a checkpoint, in kHistoryName: the amaxes of the last steps by layer,
/// and the loss scale that those of gradients contain. The same on every rank and for every layout. Empty for
/// engines without a history.
std::string float8_history_json(TrainingEngine& engine, Stream& stream);

/// Restores it, bit for bit. Throws FileError for anything that float8_history_json() does not write,
/// ConfigError if the engine has other layers or another recipe.
void restore_float8_history(std::string_view text, std::string_view where, TrainingEngine& engine,
                            Stream& stream);

}  // namespace ottava
