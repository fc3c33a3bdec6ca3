#pragma once

#include <array>
#include <span>
#include <string_view>

#include "core/ops/rope.h"

namespace ottava {

/// Types of RoPE scaling, by their names in config.json and in section model.rope_scaling.
struct RopeTypeName {
  std::string_view name;
  RopeScaling::Type type;
};
/// In the order of RopeScaling::Type.
inline constexpr RopeTypeName kRopeTypes[] = {{"llama3", RopeScaling::Type::llama3},
                                              {"linear", RopeScaling::Type::linear},
                                              {"yarn", RopeScaling::Type::yarn}};
inline std::string_view name_of(RopeScaling::Type type) { return kRopeTypes[static_cast<size_t>(type)].name; }

inline constexpr std::string_view kOriginalLength = "original_max_position_embeddings";

/// The members, and keys, that a type uses.
inline std::span<const std::string_view> rope_members(RopeScaling::Type type) {
  static constexpr std::array<std::string_view, 4> kLlama3{"factor", "low_freq_factor", "high_freq_factor",
                                                           kOriginalLength};
  static constexpr std::array<std::string_view, 6> kYarn{"factor",    kOriginalLength,    "beta_fast",
                                                         "beta_slow", "attention_factor", "truncate"};
  switch (type) {
    case RopeScaling::Type::llama3:
      return kLlama3;
    case RopeScaling::Type::linear:
      return std::span(kLlama3).first(1);
    case RopeScaling::Type::yarn:
      break;
  }
  return kYarn;
}

}  // namespace ottava
