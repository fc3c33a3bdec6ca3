#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/io/json.h"
#include "core/io/lfs_pointer.h"

namespace ottava {
namespace {

constexpr size_t kMaxDepth = 64;

// Builds our value from the library's events. The library checks grammar and UTF-8. Duplicate names and
// endless nesting must be refused here: the library's own value silently keeps the last of two names.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(std::string_view where) : where_(where) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(static_cast<int64_t>(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return add(static_cast<double>(value));
    return add(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }

  bool start_object(size_t) override { return open(Json(Json::Object{})); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(Json(Json::Array{})); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    Level& level = levels_.back();
    if (!level.names.insert(name).second)
      fail<FileError>(where_, "malformed JSON: '{}' appears twice in one object", name);
    level.name = std::move(name);
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 3: ...; last read: '...'", where the
    // last read may be megabytes.
    std::string_view text = error.what();
    text = text.substr(0, text.find("; last read: "));
    if (const size_t end = text.find("] "); end != std::string_view::npos) text.remove_prefix(end + 2);
    fail<FileError>(where_, "malformed JSON near byte {}: {}", position, text);
  }

 private:
  struct Level {
    Json value;
    std::string name;
    std::set<std::string> names;
  };

  bool add(Json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
    } else if (levels_.back().value.is_object()) {
      levels_.back().value.set(std::move(levels_.back().name), std::move(value));
    } else {
      levels_.back().value.push(std::move(value));
    }
    return true;
  }
  bool open(Json value) {
    if (levels_.size() == kMaxDepth)
      fail<FileError>(where_, "malformed JSON: nested more than {} levels", kMaxDepth);
    levels_.push_back({std::move(value), {}, {}});
    return true;
  }
  bool close() {
    Json value = std::move(levels_.back().value);
    levels_.pop_back();
    return add(std::move(value));
  }

  std::string_view where_;
  std::vector<Level> levels_;
  Json root_;
};

}  // namespace

Json Json::parse(std::string_view text, std::string_view where) {
  if (is_lfs_pointer(text)) fail<FileError>(where, "{}", kLfsPointer);
  // The library takes a zero byte outside a string as the end.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    fail<FileError>(where, "malformed JSON near byte {}: a zero byte", zero + 1);
  Builder builder(where);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace ottava
