#include "parallel/checkpoint/differences.h"

#include "core/error.h"
#include "core/text/listed.h"

namespace ottava::checkpoint {

void Differences::refuse(const std::string& folder) const {
  if (count_ == 0) return;
  std::string more = count_ > 4 ? fmt::format("; and {} more", count_ - 4) : "";
  fail<ConfigError>(
      "checkpoint",
      "{} does not fit this model: {}{}; set the section model as it is there, or choose another checkpoint "
      "(where the model is that of the folder's own config.json, its files do not belong together)",
      folder, text_, more);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return "[" + listed(shape, [](int64_t extent) { return std::to_string(extent); }) + "]";
}

}  // namespace ottava::checkpoint
