#pragma once

#include <string>
#include <string_view>

namespace ottava::tokenizer {

/// The expression that matches in PCRE2 (multiline, newline LF) what `expression` matches in Oniguruma, in
/// which HF's `tokenizers` read the patterns of a Split. Rewritten: \s is the property White_Space, \h a
/// hexadecimal digit, \v one character, (?m) what is (?s) here, [A&&[^B]] the characters of A that are none
/// of B. Throws FileError, which quotes the pattern, for what means something else in PCRE2 and is not
/// rewritten: classes in classes, other uses of &&, \Q, \E and \V, an interval with + behind it, {,n}. The
/// rest is as it was, whether it is a regular expression or not.
std::string pcre_of_oniguruma(std::string_view expression);
/// Whether anything but \s was rewritten, or means what it means in Oniguruma by the options named above: ids
/// of earlier versions, which passed it on as it was, are others.
bool needs_oniguruma(std::string_view expression);

}  // namespace ottava::tokenizer
