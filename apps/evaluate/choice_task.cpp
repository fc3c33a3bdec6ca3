#include "apps/evaluate/choice_task.h"

#include <algorithm>
#include <filesystem>

#include "core/contains.h"
#include "core/data/byte_stream.h"
#include "core/data/data_file.h"
#include "core/data/tokenizer/unicode.h"
#include "core/error.h"
#include "core/io/array_of_lines.h"
#include "core/io/json.h"
#include "core/text/counted.h"

namespace ottava {
namespace {

constexpr std::string_view kWhere = "evaluation";

/// The members of a line, with messages that begin with its place.
class Line {
 public:
  Line(std::string_view text, const std::string& place) : place_(place) {
    if (begins_array(text)) refuse("{}", kArrayOfLines);
    try {
      json_ = Json::parse(text, "");
    } catch (const FileError& error) {
      refuse("{}", std::string_view(error.what()).substr(3));
    }
    if (!json_.is_object()) refuse("the line is {}, expected an object", json_.kind());
  }

  template <class... A>
  [[noreturn]] void refuse(fmt::format_string<A...> format, A&&... args) const {
    fail<DataError>(kWhere, "{}: {}", place_, fmt::format(format, std::forward<A>(args)...));
  }
  bool has(const char* key) const { return json_.find(key) != nullptr; }
  const Json& at(const Json& object, const char* key) const {
    const Json* value = object.find(key);
    if (!value) refuse("\"{}\" is missing", key);
    return *value;
  }
  const Json& at(const char* key) const { return at(json_, key); }
  const std::string& text(const Json& value, const char* key) const {
    if (!value.is_string()) refuse("\"{}\" is {}, expected a string", key, value.kind());
    return value.as_string(key);
  }
  const std::string& text(const char* key) const { return text(at(key), key); }
  std::vector<std::string> texts(const Json& value, const char* key) const {
    if (!value.is_array()) refuse("\"{}\" is {}, expected an array of strings", key, value.kind());
    std::vector<std::string> out;
    for (const Json& entry : value.as_array(key)) out.push_back(text(entry, key));
    return out;
  }
  /// A whole number, perhaps as a string.
  int64_t number(const char* key) const {
    const Json& value = at(key);
    if (value.is_integer()) return value.as_integer(key);
    const std::string digits = value.is_string() ? value.as_string(key) : "";
    if (digits.empty() || digits.size() > 9 || digits.find_first_not_of("0123456789") != std::string::npos)
      refuse("\"{}\" is {}, expected the index of the right choice", key, value.dump().substr(0, 64));
    return std::stoll(digits);
  }

 private:
  const std::string& place_;
  Json json_;
};

void replace_all(std::string& text, std::string_view what, std::string_view with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
}

// Of WikiHow: "[title]" and other marks in brackets.
std::string without_marks(std::string text) {
  text = std::string(tokenizer::stripped(text));
  replace_all(text, " [title]", ". ");
  for (size_t open = 0; (open = text.find('[', open)) != std::string::npos;) {
    const size_t close = text.find(']', open);
    const bool is_mark = close != std::string::npos && !contains(text.substr(open, close - open), '\n');
    is_mark ? void(text.erase(open, close - open + 1)) : void(++open);
  }
  replace_all(text, "  ", " ");
  return text;
}

ChoiceItem hellaswag(const Line& line) {
  ChoiceItem item;
  item.context = without_marks(line.text("activity_label") + ": " + line.text("ctx_a") + " " +
                               tokenizer::capitalised(line.text("ctx_b")));
  for (std::string& ending : line.texts(line.at("endings"), "endings"))
    item.choices.push_back(without_marks(std::move(ending)));
  item.gold = line.number("label");
  return item;
}

ChoiceItem arc(const Line& line) {
  ChoiceItem item;
  std::vector<std::string> labels;
  const Json& question = line.at("question");
  if (question.is_object()) {  // as AI2 publishes them
    item.context = line.text(line.at(question, "stem"), "stem");
    const Json& choices = line.at(question, "choices");
    if (!choices.is_array()) line.refuse("\"choices\" is {}, expected an array", choices.kind());
    for (const Json& choice : choices.as_array("choices")) {
      item.choices.push_back(line.text(line.at(choice, "text"), "text"));
      labels.push_back(line.text(line.at(choice, "label"), "label"));
    }
  } else {
    item.context = line.text(question, "question");
    item.choices = line.texts(line.at(line.at("choices"), "text"), "text");
    labels = line.texts(line.at(line.at("choices"), "label"), "label");
  }
  item.context = "Question: " + item.context + "\nAnswer:";
  const std::string& answer = line.text("answerKey");
  item.gold = std::ranges::find(labels, answer) - labels.begin();
  if (item.gold == std::ssize(labels))
    line.refuse("the answerKey \"{}\" is not the label of any choice", answer);
  return item;
}

}  // namespace

ChoiceItem read_choice_item(std::string_view text, const std::string& place) {
  const Line line(text, place);
  ChoiceItem item;
  if (line.has("endings")) {
    item = hellaswag(line);
  } else if (line.has("answerKey")) {
    item = arc(line);
  } else if (line.has("query")) {
    item = {.context = line.text("query"),
            .choices = line.texts(line.at("choices"), "choices"),
            .gold = line.number("gold")};
    if (line.has("delimiter")) item.delimiter = line.text("delimiter");
  } else {
    line.refuse("expected \"query\", \"choices\" and \"gold\", or a line of HellaSwag or ARC");
  }
  if (item.choices.empty()) line.refuse("there are no choices");
  if (item.gold < 0 || item.gold >= std::ssize(item.choices))
    line.refuse("gold {} is out of range: there are {}, counted from 0", item.gold,
                counted(item.choices.size(), "choice"));
  for (const std::string& choice : item.choices)
    if (choice.empty()) line.refuse("a choice is empty");
  return item;
}

std::string without_endings(std::string_view path) {
  if (data::compression_of(path) != data::Compression::none) path = path.substr(0, path.rfind('.'));
  for (std::string_view ending : {".jsonl", ".ndjson", ".json", ".txt"})
    if (path.ends_with(ending)) return std::string(path.substr(0, path.size() - ending.size()));
  return std::string(path);
}

ChoiceTask read_choice_task(const std::string& path, int64_t most) {
  auto stream = data::open_stream(path, data::compression_of(path));
  std::string text;
  while (stream->append(text, 1 << 20) > 0) {
  }
  ChoiceTask task{.name = std::filesystem::path(without_endings(path)).filename().string()};
  int64_t number = 0;
  for (size_t at = 0; at < text.size() && std::ssize(task.items) != most;) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    ++number;
    at = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    task.items.push_back(read_choice_item(line, fmt::format("'{}' line {}", path, number)));
  }
  if (task.items.empty()) fail<DataError>(kWhere, "'{}' has no items", path);
  return task;
}

}  // namespace ottava
