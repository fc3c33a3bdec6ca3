#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace ottava::tokenizer {

/// A regular expression over Unicode text as HF's engine reads it (oniguruma.h), by PCRE2, compiled to
/// machine code where the platform allows.
class Pattern {
 public:
  struct Match {
    size_t begin, end;
  };

  /// Throws FileError that quotes the pattern and says what is wrong where, also for what would match
  /// otherwise than in HF's engine.
  static Pattern regex(std::string_view expression);
  static Pattern literal(std::string_view text);
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  /// What one thread needs to search: not to be shared by two threads at once.
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

  /// The first match in `text` at or after `from`; false: none. `text` is well-formed UTF-8, `from` a
  /// character's start. Throws DataError where the pattern backtracks more than any sane one.
  bool find(Scratch& scratch, std::string_view text, size_t from, Match& match) const;

 private:
  struct Code;
  explicit Pattern(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace ottava::tokenizer
