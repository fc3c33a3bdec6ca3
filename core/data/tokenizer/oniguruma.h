#pragma once

#include <string>
#include <string_view>

namespace ottava::tokenizer {

/// The expression that matches in PCRE2 (multiline, newline LF) what `expression` matches in Oniguruma, HF
/// `tokenizers`' engine for the patterns of a Split. Rewritten are: \s (the property White_Space), \h (a
/// hexadecimal digit), \v (one character), \w and named classes (by Unicode's properties), \p{Han} and other
/// scripts (Script, not Script_Extensions), (?m) (which is (?s) in PCRE2), [A&&[^B]] (the characters of A
/// that are not in B). Throws FileError that quotes the pattern for what means something else in PCRE2 and is
/// not rewritten: classes in classes, other uses of &&, \b, \B, \Q, \E, \X, \V, \p without braces, \W in a
/// class, [:graph:] and the like, an interval followed by +, {n}?, {,n}. The rest stays as it was, whether it
/// is a regular expression or not.
std::string pcre_of_oniguruma(std::string_view expression);
/// Whether a script is rewritten, which versions before that passed on as it was.
bool names_scripts(std::string_view expression);
/// Whether anything but \s and scripts is rewritten, or keeps its meaning only by the options named above. If
/// so, earlier versions, which passed the expression on as it was, gave other ids.
bool needs_oniguruma(std::string_view expression);

}  // namespace ottava::tokenizer
