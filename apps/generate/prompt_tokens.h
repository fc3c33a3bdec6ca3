#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/data/tokenizer/tokenizer.h"

namespace ottava {

/// What a model goes on with: the tokens of `text`, in which special tokens are read as such, behind BOS
/// where `add_bos` says so. Of an empty text it is BOS, and nothing where the tokenizer has none.
std::vector<int32_t> prompt_tokens(const Tokenizer& tokenizer, std::string_view text, bool add_bos);

}  // namespace ottava
