#include <nlohmann/json.hpp>

#include <cmath>

#include "core/config/print.h"

namespace ottava::config {
namespace {

using Json = nlohmann::ordered_json;

Json section_schema(const Section& section);

Json json_of(const Value& value) {
  switch (value.kind) {
    case Value::Kind::null: return nullptr;
    case Value::Kind::boolean: return value.boolean;
    case Value::Kind::integer: return value.integer;
    case Value::Kind::real: return value.real;
    case Value::Kind::text: return value.text;
    default: {
      Json items = Json::array();
      for (const Value& item : value.items) items.push_back(json_of(item));
      return items;
    }
  }
}

/// Texts of a field: its choices, or any.
Json text_schema(const Field& field) {
  if (field.choices.empty()) return {{"type", "string"}};
  Json values = Json::array();
  for (const std::string& choice : field.choices) values.push_back(choice);
  for (const auto& [old, now] : field.renamed_values) values.push_back(old);
  return {{"enum", values}};
}

/// The types a key accepts; null always, for it means the default.
Json type_schema(const Field& field) {
  switch (field.type) {
    case Type::boolean: return {{"type", {"boolean", "null"}}};
    case Type::integer: return {{"type", {"integer", "null"}}};
    case Type::real: return {{"type", {"number", "null"}}};
    case Type::text: {
      if (field.choices.empty()) {
        Json types = {"string", "null"};
        if (field.accepts_scalar) types.insert(types.end(), {"number", "boolean"});
        return {{"type", types}};
      }
      Json schema = text_schema(field);
      if (field.accepts_scalar) {  // choices that YAML reads as numbers or booleans
        for (const std::string& choice : field.choices) {
          Value scalar = plain_scalar(choice, {});
          if (scalar.kind != Value::Kind::text) schema["enum"].push_back(json_of(scalar));
        }
      }
      schema["enum"].push_back(nullptr);
      return schema;
    }
    case Type::text_list: {
      Json item = text_schema(field);
      return {{"anyOf", {{{"type", "array"}, {"items", item}}, item, {{"type", "null"}}}}};
    }
    default:
      return {{"type", {"array", "null"}}, {"items", section_schema(field.tables->prototype())}};
  }
}

std::string description(const Field& field) {
  std::string text = field.meaning_text;
  if (!field.unit_text.empty()) text += " [" + field.unit_text + "]";
  if (field.fate == Fate::noted)
    text += (text.empty() ? "" : ". ") + ("Has no meaning here: " + field.fate_text);
  if (field.fate == Fate::refused)
    text += (text.empty() ? "" : ". ") + ("Refused unless default: " + field.fate_text);
  return text;
}

Json field_schema(const Field& field) {
  Json schema = type_schema(field);
  schema["description"] = description(field);
  schema["default"] = json_of(field.fallback);
  if (std::isfinite(field.least)) schema[field.least_open ? "exclusiveMinimum" : "minimum"] = field.least;
  if (std::isfinite(field.most)) schema[field.most_open ? "exclusiveMaximum" : "maximum"] = field.most;
  return schema;
}

Json section_schema(const Section& section) {
  Json properties = Json::object(), required = Json::array();
  for (const Field& field : section.fields()) {
    properties[field.name] = field_schema(field);
    if (field.is_required) required.push_back(field.name);
  }
  for (const Section& child : section.sections()) {
    properties[child.path().substr(child.path().rfind('.') + 1)] = section_schema(child);
  }
  for (const auto& [old, now] : section.renames()) properties[old] = {{"description", "Now called " + now}};
  Json schema = {{"type", {"object", "null"}}, {"additionalProperties", false}, {"properties", properties}};
  if (!section.meaning_text().empty()) schema["description"] = section.meaning_text();
  if (!required.empty()) schema["required"] = required;
  return schema;
}

}  // namespace

std::string to_json_schema(const Section& root, const std::string& title) {
  Json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"}, {"title", title}};
  schema.update(section_schema(root));
  schema["type"] = "object";
  return schema.dump(2) + "\n";
}

}  // namespace ottava::config
