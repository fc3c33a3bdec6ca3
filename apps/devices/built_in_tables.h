#pragma once

#include <span>
#include <string_view>

namespace ottava {

/// A file of configs/devices or configs/networks as it was when the program was built.
struct BuiltInTable {
  std::string_view name, text;
};
std::span<const BuiltInTable> built_in_devices();
std::span<const BuiltInTable> built_in_networks();

}  // namespace ottava
