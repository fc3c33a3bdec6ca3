#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "core/io/json.h"

namespace ottava::test {

/// Whether this run may write files of tests/golden anew: only where OTTAVA_WRITE_GOLDEN is set. A hidden tag
/// does not protect them, since a pattern of names starts hidden cases as well.
inline bool writes_golden() { return std::getenv("OTTAVA_WRITE_GOLDEN") != nullptr; }

inline constexpr std::string_view kWritesNoGolden = "OTTAVA_WRITE_GOLDEN is not set";

inline std::vector<int32_t> ids_of(const Json& array) {
  std::vector<int32_t> ids;
  for (const Json& id : array.as_array("ids")) ids.push_back(static_cast<int32_t>(id.as_integer("id")));
  return ids;
}

}  // namespace ottava::test
