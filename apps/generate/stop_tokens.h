#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/data/tokenizer/tokenizer.h"

namespace ottava {

/// The tokens that end what a model writes: the tokenizer's EOS, and eos_token_id of
/// `folder`/generation_config.json or, if there is no such file, of config.json. Throws FileError for a file
/// that cannot be read.
std::vector<int32_t> stop_tokens(const std::string& folder, const Tokenizer& tokenizer);

}  // namespace ottava
