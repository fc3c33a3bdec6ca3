#pragma once

#include <string>
#include <vector>

namespace ottava {

/// The prompts of a file, folder or glob of text or JSON lines (also compressed): the text under `text_key`
/// of each JSON line, and each line of a text. Lines without any visible character are none. Throws
/// FileError, and DataError for what is no text, for a bad line, and where there is no prompt.
std::vector<std::string> given_prompts(const std::string& source, const std::string& text_key);

}  // namespace ottava
