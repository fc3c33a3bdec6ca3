#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/data/tokenizer/tokenizer.h"

namespace ottava {

/// The tokens that a model is to continue: those of `text`, in which special tokens are recognised, after BOS
/// if `add_bos`. For an empty text this is BOS alone, or nothing if the tokenizer has none.
std::vector<int32_t> prompt_tokens(const Tokenizer& tokenizer, std::string_view text, bool add_bos);

}  // namespace ottava
