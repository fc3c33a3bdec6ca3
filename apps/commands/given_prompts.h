#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/data/corpus.h"

namespace ottava {

struct GivenPrompts {
  std::vector<std::string> texts;
  int64_t left_out = 0;  ///< lines without any visible character, which are no prompts
};
/// The prompts of text or JSON lines, which open_text() found as `source`: the text under `text_key` of each
/// JSON line, and each line of a text. Throws FileError, and DataError for a bad line and where there is no
/// prompt.
GivenPrompts given_prompts(const data::Corpus& corpus, const std::string& source,
                           const std::string& text_key);

}  // namespace ottava
