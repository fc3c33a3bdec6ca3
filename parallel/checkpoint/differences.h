#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ottava::checkpoint {

/// Collects what keeps a folder from being this model's and refuses it in one message that names a few.
class Differences {
 public:
  void add(std::string text) {
    if (++count_ <= 4) text_ += (count_ > 1 ? "; " : "") + text;
  }
  /// Throws ConfigError when anything was added.
  void refuse(const std::string& folder) const;

 private:
  int64_t count_ = 0;
  std::string text_;
};

/// "[20, 24]".
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace ottava::checkpoint
