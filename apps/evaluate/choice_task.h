#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ottava {

/// A question with answers to choose from. A model's choice is the one that it finds likeliest behind the
/// context.
struct ChoiceItem {
  std::string context;
  std::vector<std::string> choices;
  std::string delimiter = " ";  ///< between context and choice
  int64_t gold = 0;             ///< index of the right choice
};

struct ChoiceTask {
  std::string name;
  std::vector<ChoiceItem> items;
};

/// The item of a line of JSON:
///   {"query": "...", "choices": ["...", ...], "gold": 0}, with "delimiter" if it is not a space
///   (llm-foundry, CORE) HellaSwag's own: activity_label, ctx_a, ctx_b, endings, label; made a query as
///   lm-evaluation-harness does ARC's own: question {stem, choices [{text, label}]} or question and choices
///   {text [], label []}, answerKey; "Question: ...\nAnswer:"
/// Throws DataError that begins with `place` ("'hellaswag.jsonl' line 3"): no such object, no choice, a gold
/// that is not among them.
ChoiceItem read_choice_item(std::string_view line, const std::string& place);

/// "arc/arc.easy" of "arc/arc.easy.jsonl.gz": without the endings of files of such lines.
std::string without_endings(std::string_view path);

/// The items of a file of such lines (.gz, .zst too), the first `most` of them (-1: all); the name is the
/// file's without its endings. Throws FileError and DataError.
ChoiceTask read_choice_task(const std::string& path, int64_t most = -1);

}  // namespace ottava
