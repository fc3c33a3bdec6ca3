#include "core/data/tokenizer/oniguruma.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace ottava::tokenizer {
namespace {

// Contents of classes. PCRE2's own \s also has U+180E, which left White_Space in Unicode 6.3.
constexpr std::string_view
    kSpace = R"(\x09-\x0D\x20\x85\xA0\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})",
    kNoSpace = R"(\x00-\x08\x0E-\x1F\x21-\x84\x86-\x9F\xA1-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027})"
               R"(\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})",
    kHex = "0-9A-Fa-f", kNoHex = R"(\x00-\x2F\x3A-\x40\x47-\x60\x67-\x{10FFFF})",
    kWordInClass = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})",
    kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\xB2\xB3\xB9\xBC-\xBE)";  // an oddity of \w outside classes
// [:NAME:]. PCRE2's own leave out marks, or symbols, or what is Other_Uppercase.
constexpr std::pair<std::string_view, std::string_view> kNamed[] = {
    {"word", kWordInClass},
    {"alpha", R"(\p{Alphabetic})"},
    {"alnum", R"(\p{Alphabetic}\p{Nd})"},
    {"upper", R"(\p{Uppercase})"},
    {"lower", R"(\p{Lowercase})"},
    {"punct", R"(\p{P}\p{S})"},
    {"space", kSpace},
    {"digit", "[:digit:]"},
    {"xdigit", "[:xdigit:]"},
    {"cntrl", "[:cntrl:]"},
};

// Whether \p{name} is a script, of which PCRE2 from 10.40 on takes Script_Extensions. Before, there is no
// sc:.
bool is_script(std::string_view name) {
  const std::string expression = "\\p{sc:" + std::string(name) + "}";
  int code = 0;
  size_t at = 0;
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                                       PCRE2_UTF | PCRE2_UCP, &code, &at, nullptr);
  pcre2_code_free(compiled);
  return compiled != nullptr;
}

class Translator {
 public:
  explicit Translator(std::string_view expression) : in_(expression) {}
  bool has_differed() const { return differs_; }
  bool has_scripts() const { return has_scripts_; }

  std::string translate() {
    while (at_ < in_.size()) {
      if (in_[at_] == '\\') {
        escape();
      } else if (in_[at_] == '[') {
        character_class();
      } else if (in_.substr(at_).starts_with("(?")) {
        group();
      } else if (in_[at_] == '{') {
        interval();
      } else {
        differs_ |= in_[at_] == '^' || in_[at_] == '$';
        out_ += in_[at_++];
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail<FileError>("tokenizer",
                    "split pattern '{}' has {} at byte {}, which Hugging Face's engine interprets "
                    "differently: it is refused, because ids would differ",
                    in_, what, at_);
  }
  char peek(size_t ahead) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }

  // The escape at `at_` outside classes.
  void escape() {
    differs_ |= std::string_view("hHwW").find(peek(1)) != std::string_view::npos;
    switch (peek(1)) {
      case 'w':
        return take("[", kWord);
      case 'W':
        return take("[^", kWord);
      case 'b':
      case 'B':
        refuse(in_.substr(at_, 2));
      case 's':
        return take("[", kSpace);
      case 'S':
        return take("[^", kSpace);
      case 'h':
        return take("[", kHex);
      case 'H':
        return take("[^", kHex);
      default:
        return plain_escape(out_);
    }
  }
  void take(std::string_view open, std::string_view content) {
    ((out_ += open) += content) += ']';
    at_ += 2;
  }
  void plain_escape(std::string& out) {
    const char next = peek(1);
    differs_ |= next == 'v';
    if (std::string_view("QEVX").find(next) != std::string_view::npos) refuse(in_.substr(at_, 2));
    if ((next == 'p' || next == 'P') && peek(2) != '{') refuse(fmt::format("\\{} without braces", next));
    // The braces of \p{L} and \x{2028} are not an interval.
    const bool has_braces = std::string_view("pPxo").find(next) != std::string_view::npos && peek(2) == '{';
    const size_t end = has_braces ? std::min(in_.find('}', at_), in_.size() - 1) + 1 : at_ + 2;
    if (has_braces && (next == 'p' || next == 'P') && end > at_ + 4 && in_[end - 1] == '}') {
      const bool is_negated = peek(3) == '^';
      const std::string_view name = in_.substr(at_ + 3, end - at_ - 4).substr(is_negated ? 1 : 0);
      if (is_script(name)) {
        has_scripts_ = true;
        out += fmt::format("\\{}{{{}sc:{}}}", next, is_negated ? "^" : "", name);
        at_ = end;
        return;
      }
    }
    out += next == 'v' ? "\\x0B" : in_.substr(at_, end - at_);
    at_ = std::min(end, in_.size());
  }

  // "(?" and the options behind it, if there are any: the dot takes line feeds under m there, under s here.
  void group() {
    const size_t end = std::min(in_.find_first_not_of("imx-", at_ + 2), in_.size());
    const bool has_options = end > at_ + 2 && end < in_.size() && (in_[end] == ':' || in_[end] == ')');
    std::string start(in_.substr(at_, (has_options ? end : at_ + 2) - at_));
    differs_ |= start.find('m') != std::string::npos;
    std::ranges::replace(start, 'm', 's');
    out_ += start;
    at_ += start.size();
  }

  // At a brace, which may begin an interval.
  void interval() {
    const size_t end = std::min(in_.find_first_not_of("0123456789,", at_ + 1), in_.size());
    const std::string_view inside = in_.substr(at_ + 1, end - at_ - 1);
    const bool is_one =
        end < in_.size() && in_[end] == '}' && inside.size() > (inside.find(',') != inside.npos);
    if (is_one && inside.front() == ',') refuse("an interval without its first number");
    if (is_one && in_.substr(end + 1, 1) == "+") refuse("an interval with + behind it");
    if (is_one && inside.find(',') == inside.npos && in_.substr(end + 1, 1) == "?")
      refuse("an interval of one number with ? behind it");  // there it may be left out
    const size_t length = is_one ? end + 1 - at_ : 1;
    out_ += in_.substr(at_, length);
    at_ += length;
  }

  void character_class() {
    const bool is_negated = peek(1) == '^';
    at_ += is_negated ? 2 : 1;
    const std::string first = members();
    if (!in_.substr(at_).starts_with("&&")) {
      ((out_ += is_negated ? "[^" : "[") += first) += close();
      return;
    }
    if (is_negated || first.empty() || !in_.substr(at_).starts_with("&&[^")) refuse_intersection();
    at_ += 4;
    const std::string second = members();
    if (!in_.substr(at_).starts_with("]]")) refuse_intersection();
    at_ += 2;
    differs_ = true;
    out_ += "(?:(?![" + second + "])[" + first + "])";
  }
  [[noreturn]] void refuse_intersection() const { refuse("another intersection of classes than [A&&[^B]]"); }
  // The bracket that ends a class, where there is one.
  std::string_view close() { return at_ < in_.size() ? in_.substr(at_++, 1) : ""; }

  // From behind the bracket, or its ^, up to "]", "&&" or the end.
  std::string members() {
    std::string out;
    if (peek(0) == ']') out += in_[at_++];  // the first one belongs to the class
    while (at_ < in_.size() && in_[at_] != ']' && !in_.substr(at_).starts_with("&&")) {
      if (in_[at_] == '\\') {
        member_escape(out);
      } else if (in_[at_] == '[') {
        named_class(out);
      } else {
        out += in_[at_++];
      }
    }
    return out;
  }
  void member_escape(std::string& out) {
    const char next = peek(1);
    if (next == 'W') refuse("\\W in a class");
    if (std::string_view("sShHw").find(next) == std::string_view::npos) return plain_escape(out);
    differs_ |= next == 'h' || next == 'H' || next == 'w';
    out += next == 's'   ? kSpace
           : next == 'S' ? kNoSpace
           : next == 'w' ? kWordInClass
           : next == 'h' ? kHex
                         : kNoHex;
    at_ += 2;
  }
  // [:alpha:]
  void named_class(std::string& out) {
    const size_t end = in_.find(":]", at_);
    if (peek(1) != ':' || end == std::string_view::npos) refuse("a class within a class");
    const auto* found = std::ranges::find(kNamed, in_.substr(at_ + 2, end - at_ - 2),
                                          &std::pair<std::string_view, std::string_view>::first);
    if (found == std::end(kNamed)) refuse(in_.substr(at_, end + 2 - at_));
    differs_ |= !found->second.starts_with("[:");
    out += found->second;
    at_ = end + 2;
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  bool differs_ = false, has_scripts_ = false;
};

}  // namespace

std::string pcre_of_oniguruma(std::string_view expression) { return Translator(expression).translate(); }

bool names_scripts(std::string_view expression) {
  Translator translator(expression);
  translator.translate();
  return translator.has_scripts();
}

bool needs_oniguruma(std::string_view expression) {
  Translator translator(expression);
  translator.translate();
  return translator.has_differed();
}

}  // namespace ottava::tokenizer
