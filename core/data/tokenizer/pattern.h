#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace ottava::tokenizer {

/// A regular expression over Unicode text, read as by HF's engine (oniguruma.h) and matched by PCRE2,
/// compiled to machine code where the platform allows it.
class Pattern {
 public:
  struct Match {
    size_t begin, end;
  };

  /// Throws FileError that quotes the pattern and says what is wrong and where, also for anything that would
  /// match differently from HF's engine.
  static Pattern regex(std::string_view expression);
  static Pattern literal(std::string_view text);
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  /// What one thread needs for a search; two threads must not use it at once.
  class Scratch {
   public:
    Scratch();
    Scratch(Scratch&&) noexcept;
    ~Scratch();

   private:
    friend class Pattern;
    struct State;
    std::unique_ptr<State> state_;
  };

  /// Finds the first match in `text` at or after `from`; returns false if there is none. `text` is
  /// well-formed UTF-8, `from` the start of a character. Throws DataError if the pattern backtracks too often
  /// (a PCRE2 match limit of 10 million or, of a longer text, 8 for each byte of it: each character of a run
  /// of white space is one step back for every alternative that begins with it).
  bool find(Scratch& scratch, std::string_view text, size_t from, Match& match) const;

 private:
  struct Code;
  explicit Pattern(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace ottava::tokenizer
