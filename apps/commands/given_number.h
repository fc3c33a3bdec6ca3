#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ottava {

/// What a number on a command line may be. Only decimal numbers that are finite are numbers.
struct GivenNumber {
  std::optional<uint64_t> largest_whole = {};  ///< for whole numbers: the largest that the option can hold
  std::optional<double> least = {}, most = {};

  /// "1 to 100", "at least 1", "a whole number".
  std::string expected() const;
  /// "expected 1 to 100, got 0x10"; empty if `text` is such a number.
  std::string refusal(const std::string& text) const;
  /// A whole number that refusal() accepts without its leading zeros, anything else as it is.
  std::string plain(const std::string& text) const;
};

}  // namespace ottava
