#include "core/io/json.h"

#include <cmath>

#include "core/contains.h"
#include "core/io/utf8.h"

namespace ottava {
namespace {

template <class T, class V>
const T& get(const V& value, std::string_view what, std::string_view expected, std::string_view kind) {
  if (const T* found = std::get_if<T>(&value)) return *found;
  fail<FileError>(what, "is {}, expected {}", kind, expected);
}

void new_line(std::string& out, int indent, int depth) {
  if (indent == 0) return;
  out += '\n';
  out.append(indent * depth, ' ');
}

}  // namespace

std::string_view Json::kind() const {
  constexpr std::string_view kNames[] = {"null",     "a boolean", "an integer", "a number",
                                         "a string", "an array",  "an object"};
  return kNames[value_.index()];
}

bool Json::as_bool(std::string_view what) const { return get<bool>(value_, what, "true or false", kind()); }

int64_t Json::as_integer(std::string_view what) const {
  return get<int64_t>(value_, what, "an integer", kind());
}

double Json::as_number(std::string_view what) const {
  if (is_integer()) return std::get<int64_t>(value_);
  return get<double>(value_, what, "a number", kind());
}

const std::string& Json::as_string(std::string_view what) const {
  return get<std::string>(value_, what, "a string", kind());
}

const Json::Array& Json::as_array(std::string_view what) const {
  return get<Array>(value_, what, "an array", kind());
}

const Json::Object& Json::as_object(std::string_view what) const {
  return get<Object>(value_, what, "an object", kind());
}

const Json* Json::find(std::string_view name) const {
  const Object* object = std::get_if<Object>(&value_);
  const auto* member = object ? find_by(*object, name, &Object::value_type::first) : nullptr;
  return member ? &member->second : nullptr;
}

const Json& Json::at(std::string_view name, std::string_view what) const {
  as_object(what);
  const Json* found = find(name);
  if (!found) fail<FileError>(what, "has no '{}'", name);
  return *found;
}

Json& Json::set(std::string_view name, Json value) {
  if (is_null()) value_ = Object{};
  std::get<Object>(value_).emplace_back(name, std::move(value));
  return *this;
}

Json& Json::push(Json value) {
  if (is_null()) value_ = Array{};
  std::get<Array>(value_).push_back(std::move(value));
  return *this;
}

std::string Json::dump(int indent) const {
  std::string out;
  append_to(out, indent, 0);
  return out;
}

void Json::append_to(std::string& out, int indent, int depth) const {
  if (is_null()) {
    out += "null";
  } else if (const bool* boolean = std::get_if<bool>(&value_)) {
    out += *boolean ? "true" : "false";
  } else if (const int64_t* integer = std::get_if<int64_t>(&value_)) {
    out += std::to_string(*integer);
  } else if (const double* number = std::get_if<double>(&value_)) {
    append_json_number(out, *number);
  } else if (const std::string* text = std::get_if<std::string>(&value_)) {
    append_json_string(out, *text);
  } else if (const Array* array = std::get_if<Array>(&value_)) {
    out += '[';
    // In lists of records each takes a line; other arrays are short here (shapes, names) and stay on one
    // line.
    bool lines = indent > 0 && !array->empty() && array->front().is_object();
    for (size_t i = 0; i < array->size(); ++i) {
      if (i > 0) out += ',';
      if (lines) {
        new_line(out, indent, depth + 1);
      } else if (i > 0 && indent > 0) {
        out += ' ';
      }
      (*array)[i].append_to(out, 0, 0);
    }
    if (lines) new_line(out, indent, depth);
    out += ']';
  } else {
    const Object& object = std::get<Object>(value_);
    out += '{';
    for (size_t i = 0; i < object.size(); ++i) {
      if (i > 0) out += ',';
      new_line(out, indent, depth + 1);
      append_json_string(out, object[i].first);
      out += indent > 0 ? ": " : ":";
      object[i].second.append_to(out, indent, depth + 1);
    }
    if (!object.empty()) new_line(out, indent, depth);
    out += '}';
  }
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    auto byte = static_cast<unsigned char>(text[i]);
    if (const CodePoint c = code_point_at(text, i); !c.valid || c.length > 1) {
      out += c.valid ? text.substr(i, c.length) : "\xef\xbf\xbd";
      i += c.length;
      continue;
    }
    switch (byte) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (byte < 0x20 || byte == 0x7f) {
          out += fmt::format("\\u{:04x}", byte);
        } else {
          out += static_cast<char>(byte);
        }
    }
    ++i;
  }
  out += '"';
}

void append_json_number(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  std::string text = fmt::format("{}", value);
  // Readers that tell integers from floats (ours does) must read back a float.
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  out += text;
}

}  // namespace ottava
