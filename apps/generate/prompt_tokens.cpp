#include "apps/generate/prompt_tokens.h"

namespace ottava {

std::vector<int32_t> prompt_tokens(const Tokenizer& tokenizer, std::string_view text, bool add_bos) {
  return tokenizer.encode(text, {.add_bos = add_bos || text.empty()});
}

}  // namespace ottava
