#include <cmath>

#include "core/config/nearest.h"
#include "core/config/print.h"
#include "core/io/json.h"

namespace ottava::config {
namespace {

Json section_schema(const Section& section);

Json json_of(const Value& value) {
  using enum Value::Kind;
  switch (value.kind) {
    case null:
      return {};
    case boolean:
      return value.boolean;
    case integer:
      return value.integer;
    case real:
      return value.real;
    case text:
      return value.text;
    default: {
      Json::Array items;
      for (const Value& item : value.items) items.push_back(json_of(item));
      return items;
    }
  }
}

Json text_choices(const Field& field) {
  Json::Array values;
  for (const std::string& choice : field.choices) values.emplace_back(choice);
  for (const auto& [old, now] : field.renamed_values) values.emplace_back(old);
  return values;
}

/// `{"type": [...]}`; null is always allowed, since it means the default.
Json types(std::initializer_list<const char*> names) {
  Json list;
  for (const char* name : names) list.push(name);
  return Json().set("type", list.push("null"));
}

Json text_schema(const Field& field) {
  if (field.choices.empty()) {
    return field.accepts_scalar ? types({"string", "number", "boolean"}) : types({"string"});
  }
  Json values = text_choices(field);
  for (const std::string& choice : field.choices) {
    Value scalar = plain_scalar(choice, {});  // a choice that YAML reads as a number or boolean
    if (field.accepts_scalar && scalar.kind != Value::Kind::text) values.push(json_of(scalar));
  }
  return Json().set("enum", values.push(Json()));
}

Json text_list_schema(const Field& field) {
  Json item;
  if (field.choices.empty() && field.accepts_scalar) {
    item = Json().set("type", Json().push("string").push("number"));
  } else if (field.choices.empty()) {
    item.set("type", "string");
  } else {
    item.set("enum", text_choices(field));
  }
  Json array = Json().set("type", "array").set("items", item);
  return Json().set("anyOf", Json::Array{array, item, Json().set("type", "null")});
}

Json type_schema(const Field& field) {
  using enum Type;
  switch (field.type) {
    case boolean:
      return types({"boolean"});
    case integer:
      return types({"integer"});
    case real:
      return types({"number"});
    case text:
      return text_schema(field);
    case text_list:
      return text_list_schema(field);
    default:
      return types({"array"}).set("items", section_schema(field.tables->prototype()));
  }
}

std::string description(const Field& field) {
  std::string text = field.meaning_text;
  if (!field.unit_text.empty()) text += " [" + field.unit_text + "]";
  if (field.fate == Fate::used) return text;
  if (!text.empty()) text += ". ";
  return text + (field.fate == Fate::noted ? "Ignored: " : "Only the default is supported: ") +
         field.fate_text;
}

Json field_schema(const Field& field) {
  Json schema = type_schema(field);
  schema.set("description", description(field)).set("default", json_of(field.fallback));
  Json range;
  if (std::isfinite(field.least)) range.set(field.least_open ? "exclusiveMinimum" : "minimum", field.least);
  if (std::isfinite(field.most)) range.set("maximum", field.most);
  if (field.beside_range)
    return schema.set("anyOf", Json::Array{range, Json().set("const", *field.beside_range)});
  if (!range.is_null())
    for (const auto& [name, bound] : range.as_object(field.path)) schema.set(name, bound);
  return schema;
}

/// Objects are closed, so that an editor marks unknown keys.
Json section_schema(const Section& section) {
  Json properties = Json::Object{}, required = Json::Array{};
  for (const Field& field : section.fields()) {
    properties.set(field.name, field_schema(field));
    if (field.is_required) required.push(field.name);
  }
  for (const Section& child : section.sections()) {
    properties.set(std::string(last_name(child.path())), section_schema(child));
  }
  for (const auto& [old, now] : section.renames()) {
    properties.set(old, Json().set("description", "Now called " + now));
  }
  Json schema = types({"object"});
  if (!section.meaning_text().empty()) schema.set("description", section.meaning_text());
  schema.set("additionalProperties", false).set("properties", properties);
  if (!required.as_array("required").empty()) schema.set("required", required);
  return schema;
}

}  // namespace

std::string to_json_schema(const Section& root, const std::string& title) {
  Json schema = Json().set("$schema", "http://json-schema.org/draft-07/schema#").set("title", title);
  Json sections = section_schema(root);
  for (const auto& [name, value] : sections.as_object(title)) schema.set(name, value);
  return schema.dump(2) + "\n";
}

}  // namespace ottava::config
