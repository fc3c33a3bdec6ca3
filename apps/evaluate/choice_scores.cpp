#include "apps/evaluate/choice_scores.h"

#include <algorithm>
#include <cmath>

#include "core/data/chat/masked_token.h"
#include "core/data/tokenizer/unicode.h"
#include "core/data/whole_packing.h"
#include "core/error.h"
#include "core/round_up.h"
#include "core/sum_of.h"
#include "core/text/counted.h"

namespace ottava {
namespace {

using Tokens = std::vector<int32_t>;

int64_t characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

// Context and choice; the tokens of the context are masked. `question` counts from 1.
Tokens encode(const Tokenizer& tokenizer, const ChoiceTask& task, int64_t question, const std::string& choice,
              bool add_bos) {
  const ChoiceItem& item = task.items[question - 1];
  const std::string context(tokenizer::stripped_at_end(item.context));
  const EncodeOptions options{.add_bos = add_bos};
  Tokens tokens = tokenizer.encode(item.context + item.delimiter + choice, options);
  const Tokens own = tokenizer.encode(context, options);
  size_t masked = own.size();
  if (masked == 0) {  // something must stand in front of what is scored
    tokens.insert(tokens.begin(), leading_token(tokenizer));
    masked = 1;
  }
  if (masked >= tokens.size()) {  // nothing would be scored, and the choice be a certain one
    fail<DataError>(
        "evaluation",
        "question {} of {}: the tokenizer merges the choice '{}' with the end of the context, so that no "
        "token of it can be scored: end the context differently, or add a \"delimiter\" between them",
        question, task.name, choice);
  }
  for (size_t i = 0; i < masked; ++i) tokens[i] = data::masked(i < own.size() ? own[i] : tokens[i]);
  return tokens;
}

Accuracy accuracy(int64_t right, int64_t items) {
  const double n = items, p = static_cast<double>(right) / n;
  return {p, items > 1 ? std::sqrt(p * (1 - p) / (n - 1)) : 0};
}

}  // namespace

ChoiceTokens encode_choices(const ChoiceTask& task, const Tokenizer& tokenizer, int64_t sequence,
                            std::optional<bool> add_bos) {
  ChoiceTokens out;
  const bool adds_bos = add_bos.value_or(tokenizer.adds_bos());
  for (int64_t question = 1; question <= std::ssize(task.items); ++question) {
    const int64_t first = std::ssize(out.documents);
    for (const std::string& choice : task.items[question - 1].choices) {
      Tokens tokens = encode(tokenizer, task, question, choice, adds_bos);
      if (const int64_t over = std::ssize(tokens) - (sequence + 1); over > 0) {
        tokens.erase(tokens.begin(), tokens.begin() + over);
        ++out.cut;
      }
      const auto same = std::find(out.documents.begin() + first, out.documents.end(), tokens);
      out.document_of.push_back(same - out.documents.begin());
      if (same == out.documents.end()) out.documents.push_back(std::move(tokens));
    }
  }
  return out;
}

// In one window choices follow each other in the same order, however much of the window is left.
PassShape smallest_pass(std::span<const ChoiceTokens> tasks, PassShape most) {
  constexpr int64_t kMultiple = 64;
  PassShape out{.batch = 1, .sequence = 2};
  for (const ChoiceTokens& task : tasks) {
    const int64_t inputs = sum_of(task.documents, [](const Tokens& t) { return std::ssize(t); }) - 1;
    const int64_t rounded = round_up(inputs, kMultiple);
    out.sequence = std::max(out.sequence, std::min(rounded, most.sequence));
  }
  for (const ChoiceTokens& task : tasks) {
    const data::WholePacked whole = data::pack_whole(task.documents, {.seq_len = out.sequence});
    out.batch = std::max(out.batch, std::min(whole.packed.windows(out.sequence), most.batch));
  }
  return out;
}

ChoiceScores score_choices(const ChoiceTask& task, const ChoiceTokens& tokens, const TokenLosses& model) {
  ChoiceScores out{.name = task.name, .items = std::ssize(task.items), .cut = tokens.cut};
  const data::WholePacked whole =
      data::pack_whole(tokens.documents, {.seq_len = model.sequence, .share_windows = model.share_windows});
  const std::vector<double> sums = losses_of_documents(whole, tokens.documents.size(), model);
  int64_t right = 0, right_norm = 0, right_bytes = 0;
  size_t next = 0;
  for (const ChoiceItem& item : task.items) {
    std::vector<double> scores, per_character, per_byte;
    for (const std::string& choice : item.choices) {
      scores.push_back(-sums[tokens.document_of[next++]]);
      per_character.push_back(scores.back() / characters(choice));
      per_byte.push_back(scores.back() / choice.size());
    }
    const bool is_finite = std::ranges::all_of(scores, [](double score) { return std::isfinite(score); });
    out.not_finite += !is_finite;
    const auto is_right = [&](const std::vector<double>& by) {
      return is_finite && std::ranges::max_element(by) - by.begin() == item.gold;
    };
    right += is_right(scores), right_norm += is_right(per_character), right_bytes += is_right(per_byte);
    out.choices += std::ssize(scores);
    out.log_likelihoods.push_back(std::move(scores));
  }
  out.acc = accuracy(right, out.items);
  out.acc_norm = accuracy(right_norm, out.items);
  out.acc_bytes = accuracy(right_bytes, out.items);
  return out;
}

std::string to_text(const ChoiceScores& s) {
  const auto share = [](std::string_view name, const Accuracy& a) {
    return fmt::format("{} {:.1f}% +- {:.1f}", name, 100 * a.value, 100 * a.standard_error);
  };
  std::string text =
      fmt::format("{}: {}, {}, {} ({})", s.name, share("acc", s.acc), share("acc_norm", s.acc_norm),
                  share("acc_bytes", s.acc_bytes), counted(s.items, "item"));
  if (s.cut > 0) text += fmt::format("; too long, with the beginning left out: {}", counted(s.cut, "choice"));
  if (s.not_finite > 0)
    text += fmt::format("; the log-likelihoods of {} are not finite, so these count as wrong",
                        counted(s.not_finite, "question"));
  return text;
}

}  // namespace ottava
