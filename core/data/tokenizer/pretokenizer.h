#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/tokenizer/definition.h"
#include "core/data/tokenizer/pattern.h"

namespace ottava::tokenizer {

/// Cuts text into the words that BPE works on, by the definition's split steps.
class Pretokenizer {
 public:
  /// Throws FileError for a pattern that does not compile.
  explicit Pretokenizer(const std::vector<SplitStep>& steps);

  using Word = std::function<void(std::string_view)>;
  /// Calls word() for every word of `text`, in order. A byte that is not UTF-8 ends the word before it; a run
  /// of such bytes is one word.
  void split(std::string_view text, Pattern::Scratch& scratch, const Word& word) const;

 private:
  struct Step {
    std::optional<Pattern> pattern;
    bool add_prefix_space;
  };
  void split(std::string_view piece, size_t step, Pattern::Scratch& scratch, const Word& word) const;
  std::vector<Step> steps_;
};

}  // namespace ottava::tokenizer
