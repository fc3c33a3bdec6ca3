#include "apps/generate/stop_tokens.h"

#include <filesystem>

#include "core/io/file.h"
#include "core/io/json.h"
#include "models/hf_config.h"

namespace ottava {

std::vector<int32_t> stop_tokens(const std::string& folder, const Tokenizer& tokenizer) {
  std::vector<int32_t> stops;
  if (auto eos = tokenizer.eos_id()) stops.push_back(*eos);
  std::string path = folder + "/generation_config.json";
  if (!std::filesystem::exists(path)) path = folder + "/config.json";
  for (int64_t id : eos_token_ids(Json::parse(read_file(path), path), path))
    stops.push_back(static_cast<int32_t>(id));
  return stops;
}

}  // namespace ottava
