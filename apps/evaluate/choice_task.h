#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ottava {

/// A question with answers to choose from. A model chooses the answer that it finds likeliest after the
/// context.
struct ChoiceItem {
  std::string context;
  std::vector<std::string> choices;
  std::string delimiter = " ";  ///< between context and choice
  int64_t gold = 0;             ///< index of the right choice
};

/// Questions under one name.
struct ChoiceTask {
  std::string name;
  std::vector<ChoiceItem> items;
};

/// The item of a line of JSON, which is one of
///   {"query": "...", "choices": ["...", ...], "gold": 0} (llm-foundry, CORE), with "delimiter" if that is
///   not
///       a space
///   HellaSwag's own: activity_label, ctx_a, ctx_b, endings, label; made into a query as by
///       lm-evaluation-harness
///   ARC's own: question {stem, choices [{text, label}]} or question and choices {text [], label []},
///   answerKey;
///       made into "Question: ...\nAnswer:"
/// Throws DataError that begins with `place` ("'hellaswag.jsonl' line 3") for no such object, no choice, an
/// empty one, or a gold that is not among the choices.
ChoiceItem read_choice_item(std::string_view line, const std::string& place);

/// A path without the endings of such files: "arc/arc.easy" for "arc/arc.easy.jsonl.gz".
std::string without_endings(std::string_view path);

/// The first `most` items (-1: all) of a file of such lines (also .gz, .zst). The task's name is the file's
/// without its endings. Throws FileError and DataError.
ChoiceTask read_choice_task(const std::string& path, int64_t most = -1);

}  // namespace ottava
