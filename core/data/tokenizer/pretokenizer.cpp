#include "core/data/tokenizer/pretokenizer.h"

#include "core/io/utf8.h"

namespace ottava::tokenizer {

Pretokenizer::Pretokenizer(const std::vector<SplitStep>& steps) {
  for (const SplitStep& step : steps) {
    std::optional<Pattern> pattern;
    if (!step.regex.empty())
      pattern = step.literal ? Pattern::literal(step.regex) : Pattern::regex(step.regex);
    steps_.push_back({std::move(pattern), step.add_prefix_space});
  }
}

void Pretokenizer::split(std::string_view text, Pattern::Scratch& scratch, const Word& word) const {
  for (size_t at = 0; at < text.size();) {
    size_t end = well_formed_end(text, at);
    if (end > at) split(text.substr(at, end - at), 0, scratch, word);
    at = end;
    while (end < text.size() && !code_point_at(text, end).valid) ++end;
    if (end > at) word(text.substr(at, end - at));
    at = end;
  }
}

void Pretokenizer::split(std::string_view piece, size_t index, Pattern::Scratch& scratch,
                         const Word& word) const {
  if (index == steps_.size()) return word(piece);
  const Step& step = steps_[index];
  std::string longer;
  if (step.add_prefix_space && piece.front() != ' ') {
    longer.append(" ").append(piece);
    piece = longer;
  }
  if (!step.pattern) return split(piece, index + 1, scratch, word);

  size_t done = 0;
  auto cut_at = [&](size_t end) {
    if (end > done) split(piece.substr(done, end - done), index + 1, scratch, word);
    done = end;
  };
  Pattern::Match match;
  for (size_t from = 0; from < piece.size() && step.pattern->find(scratch, piece, from, match);) {
    cut_at(match.begin);
    cut_at(match.end);
    // An empty match is just a cut; the search continues after the next character.
    from = match.end > from ? match.end : from + code_point_at(piece, from).length;
  }
  cut_at(piece.size());
}

}  // namespace ottava::tokenizer
