#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "core/config/source.h"
#include "core/contains.h"
#include "core/error.h"
#include "core/io/utf8.h"
#include "core/text/counted.h"

namespace ottava::config {
namespace {

/// Builds the tree from the parser's events: exact marks for keys and values, and limits that hold while
/// parsing.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const std::string& name) : source_(std::make_shared<const std::string>(name)) {}

  Value take_root() { return std::move(root_); }
  bool has_root() const { return has_root_; }
  /// Where the last text in quotes, or after | or >, begins.
  const Location& last_quoted() const { return last_quoted_; }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    place(plain_scalar("", at(mark)), anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    auto it = anchors_.find(anchor);
    // An alias inside its own anchor would be an endless tree; the anchor is only known once complete.
    if (it == anchors_.end()) refuse(mark, "an alias refers to a value that contains it");
    count(mark, weight_of(it->second));
    check_depth(mark, frames_.size() + depth_of(it->second));
    place(it->second, 0);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    count(mark, 1);
    // yaml-cpp marks a plain scalar "?" and a quoted one "!".
    if (tag == "?" || tag.empty()) return place(plain_scalar(text, at(mark)), anchor);
    check_tag(mark, tag);
    last_quoted_ = at(mark);
    place(Value::of(text, at(mark)), anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Value::Kind::list);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Value::Kind::table);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    Value value;
    YAML::anchor_t anchor = 0;
    bool has_key = false;
    Member pending;             ///< the key whose value comes next
    std::vector<Value> merges;  ///< values of `<<`, applied when the table is complete
    std::set<std::string> keys;
  };

  Location at(const YAML::Mark& mark) const { return {source_, mark.line + 1, mark.column + 1}; }

  [[noreturn]] void refuse(const YAML::Mark& mark, const std::string& what) const { refuse(at(mark), what); }
  [[noreturn]] void refuse(const Location& where, const std::string& what) const {
    fail<ConfigError>("config", "{}: {}", to_string(where), what);
  }

  void check_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (!tag.empty() && tag != "?" && tag != "!")
      refuse(mark, fmt::format("the YAML tag {} is not supported", tag));
  }

  /// Counts values, and long texts as several, so that what an alias copies is bounded in number and in
  /// bytes.
  static size_t weight_of(const Value& value) {
    size_t n = 1 + value.text.size() / 64;
    for (const Value& item : value.items) n += weight_of(item);
    for (const Member& member : value.members) n += 1 + member.key.size() / 64 + weight_of(member.value);
    return n;
  }

  static size_t depth_of(const Value& value) {
    size_t deepest = 0;
    for (const Value& item : value.items) deepest = std::max(deepest, depth_of(item));
    for (const Member& member : value.members) deepest = std::max(deepest, depth_of(member.value));
    return value.is_scalar() ? 0 : 1 + deepest;
  }

  void check_depth(const YAML::Mark& mark, size_t depth) const {
    if (depth > kMaxDepth) refuse(mark, fmt::format("nested more than {} levels deep", kMaxDepth));
  }

  void count(const YAML::Mark& mark, size_t values) {
    count_ += values;
    if (count_ > kMaxValues) refuse(mark, fmt::format("more than {} values, aliases expanded", kMaxValues));
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Value::Kind kind) {
    check_tag(mark, tag);
    count(mark, 1);
    check_depth(mark, frames_.size() + 1);
    if (!frames_.empty() && frames_.back().value.kind == Value::Kind::table && !frames_.back().has_key) {
      refuse(mark, "a key must be a string");
    }
    frames_.push_back({.value = {.kind = kind, .at = at(mark)}, .anchor = anchor});
  }

  void close() {
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    for (Value& merge : frame.merges) {
      for (Member& member : merge.members) {
        if (frame.keys.insert(member.key).second) frame.value.members.push_back(std::move(member));
      }
    }
    place(std::move(frame.value), frame.anchor);
  }

  void place(Value value, YAML::anchor_t anchor) {
    if (anchor != 0) anchors_[anchor] = value;
    if (frames_.empty()) {
      root_ = std::move(value);
      has_root_ = true;
      return;
    }
    Frame& frame = frames_.back();
    if (frame.value.kind == Value::Kind::list) {
      frame.value.items.push_back(std::move(value));
    } else if (!frame.has_key) {
      set_key(frame, std::move(value));
    } else {
      set_member(frame, std::move(value));
    }
  }

  void set_key(Frame& frame, Value key) {
    if (!key.is_scalar() || key.kind == Value::Kind::null) refuse(key.at, "a key must be a string");
    if (key.text != "<<" && !frame.keys.insert(key.text).second) {
      const Member* first = find_by(frame.value.members, key.text, &Member::key);
      refuse(key.at, fmt::format("the key '{}' is given twice, first at line {}", key.text, first->at.line));
    }
    frame.pending = {key.text, key.at, {}};
    frame.has_key = true;
  }

  void set_member(Frame& frame, Value value) {
    frame.has_key = false;
    if (frame.pending.key != "<<") {
      frame.pending.value = std::move(value);
      frame.value.members.push_back(std::move(frame.pending));
      return;
    }
    std::vector<Value> tables;
    if (value.kind == Value::Kind::list) {
      tables = std::move(value.items);
    } else {
      tables.push_back(std::move(value));
    }
    for (Value& table : tables) {
      if (table.kind != Value::Kind::table)
        refuse(frame.pending.at, "'<<' merges tables, got " + describe(table));
      frame.merges.push_back(std::move(table));
    }
  }

  std::shared_ptr<const std::string> source_;
  std::vector<Frame> frames_;
  std::map<YAML::anchor_t, Value> anchors_;
  Value root_;
  Location last_quoted_;
  bool has_root_ = false;
  size_t count_ = 0;
};

/// Parses the first document of `text` into `into`; true if there is another one.
bool parse_documents(std::string text, const std::string& name, TreeBuilder& into) {
  std::istringstream in(std::move(text));
  YAML::Parser parser(in);
  parser.HandleNextDocument(into);
  TreeBuilder second(name);
  return parser.HandleNextDocument(second);
}

/// Whether a quote is open at the end. After the end of a line yaml-cpp takes the end of the text for the
/// closing quote, so that all keys behind the open one would be part of its text.
bool has_open_quote(std::string_view text, const std::string& name) {
  try {
    TreeBuilder unused(name);
    parse_documents(std::string(text) + "\n#", name, unused);
  } catch (const YAML::Exception& e) {
    return e.msg == YAML::ErrorMsg::EOF_IN_SCALAR;
  }
  return false;
}

/// Whether the first line that is more than a comment is in brackets, as `[model]` is.
bool begins_like_toml(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  while (!text.empty()) {
    const std::string_view whole = text.substr(0, text.find('\n')), line = whole.substr(0, whole.find('#'));
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin != std::string_view::npos)
      return line[begin] == '[' && line[line.find_last_not_of(" \t\r")] == ']';
    text.remove_prefix(std::min(whole.size() + 1, text.size()));
  }
  return false;
}

/// yaml-cpp's messages speak of its grammar; this says what has to change in the line that it marks.
std::string advice(const YAML::Exception& e, std::string_view text, const std::string& name) {
  if (has_open_quote(text, name)) return "a quote opened here or above is never closed";
  for (int line = 0; line < e.mark.line; ++line) text.remove_prefix(text.find('\n') + 1);
  const std::string_view indent = text.substr(0, text.find_first_not_of(" \t"));
  if (contains(indent, '\t')) return "a tab indents this line; YAML takes spaces only";
  if (e.msg.ends_with("flow not found")) return "a bracket opened here or above is never closed";
  if (e.msg.ends_with("not found")) {
    return fmt::format(
        "this line is indented by {}, unlike the lines above; all keys of a section must begin in the same "
        "column",
        counted(indent.size(), "space"));
  }
  if (e.msg == "illegal map value") {
    return "a key is not allowed here; this line may be indented too far, the line above may lack its ':', "
           "or a value that contains ': ' may lack quotes";
  }
  return e.msg;
}

}  // namespace

Value parse_yaml_value(std::string_view text, const std::string& name) {
  check_size(text, name);
  if (contains(text, '\0'))
    fail<ConfigError>("config", "{} contains a zero byte, so it is not a text file", name);
  TreeBuilder builder(name);
  try {
    if (parse_documents(std::string(text), name, builder))
      fail<ConfigError>("config", "{}: more than one YAML document ('---')", name);
  } catch (const YAML::Exception& e) {
    if (e.mark.is_null()) fail<ConfigError>("config", "{}: {}", name, e.msg);
    fail<ConfigError>("config", "{}:{}:{}: not valid YAML: {}", name, e.mark.line + 1, e.mark.column + 1,
                      advice(e, text, name));
  }
  if (has_open_quote(text, name))
    fail<ConfigError>("config", "{}: not valid YAML: the quote opened here is never closed",
                      to_string(builder.last_quoted()));
  return builder.take_root();
}

Value parse_yaml(std::string_view text, const std::string& name) {
  // No file of sections is a list. What follows may be YAML or not.
  if (begins_like_toml(text)) {
    fail<ConfigError>("config",
                      "{}: the file begins like TOML ('[section]'), but its name makes it YAML: name it "
                      "FILE.toml",
                      name);
  }
  Value root = parse_yaml_value(text, name);
  if (root.kind == Value::Kind::null) root.kind = Value::Kind::table;
  if (root.kind != Value::Kind::table) {
    fail<ConfigError>("config", "{}: expected sections with keys, got {}", name, describe(root));
  }
  return root;
}

}  // namespace ottava::config
