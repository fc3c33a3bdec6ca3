#pragma once

// Catch2 2 and 3 under one name.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif

#if __has_include(<catch2/catch_all.hpp>)
#include <concepts>
#include <string>

// Contains, StartsWith and EndsWith match texts, as in Catch2 2.
namespace Catch {
namespace Matchers {
/// Preferred for texts to Catch2's template of this name, which looks for an element of a range.
template <class Text>
requires std::convertible_to<Text, std::string>
auto Contains(Text&& text) { return ContainsSubstring(std::string(text)); }
}  // namespace Matchers
using Matchers::Contains;
using Matchers::EndsWith;
using Matchers::StartsWith;
}  // namespace Catch
#endif
