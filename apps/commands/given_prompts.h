#pragma once

#include <string>
#include <vector>

#include "core/data/corpus.h"

namespace ottava {

/// The prompts of text or JSON lines, which open_text() found as `source`: the text under `text_key` of each
/// JSON line, and each line of a text. Lines without any visible character are none. Throws FileError, and
/// DataError for a bad line and where there is no prompt.
std::vector<std::string> given_prompts(const data::Corpus& corpus, const std::string& source,
                                       const std::string& text_key);

}  // namespace ottava
