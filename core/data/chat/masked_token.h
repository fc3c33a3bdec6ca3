#pragma once

#include <cstdint>

namespace ottava::data {

/// A token that is read but not predicted (its loss does not count) is kept as its complement, so that a list
/// of tokens needs no second list for the mask. Ids are at least 0.
constexpr int32_t masked(int32_t id) { return ~id; }
constexpr bool is_masked(int32_t token) { return token < 0; }
constexpr int32_t id_of(int32_t token) { return token < 0 ? ~token : token; }

}  // namespace ottava::data
