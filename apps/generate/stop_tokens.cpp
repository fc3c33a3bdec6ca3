#include "apps/generate/stop_tokens.h"

#include <filesystem>

#include "core/io/file.h"
#include "core/io/json.h"

namespace ottava {

std::vector<int32_t> stop_tokens(const std::string& folder, const Tokenizer& tokenizer) {
  std::vector<int32_t> stops;
  if (auto eos = tokenizer.eos_id()) stops.push_back(*eos);
  const std::string path = folder + "/generation_config.json";
  if (!std::filesystem::exists(path)) return stops;
  const Json file = Json::parse(read_file(path), path);
  const Json* value = file.find("eos_token_id");
  if (!value || value->is_null()) return stops;
  const Json::Array list = value->is_array() ? value->as_array("eos_token_id") : Json::Array{*value};
  for (const Json& id : list) stops.push_back(static_cast<int32_t>(id.as_integer(path + ": eos_token_id")));
  return stops;
}

}  // namespace ottava
