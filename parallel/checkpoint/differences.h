#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ottava::checkpoint {

/// Collects the reasons why a folder is not this model's, and refuses the folder with one message that names
/// the first few.
class Differences {
 public:
  template <class... A>
  void add(fmt::format_string<A...> format, A&&... args) {
    if (++count_ <= 4) text_ += (count_ > 1 ? "; " : "") + fmt::format(format, std::forward<A>(args)...);
  }
  /// Throws ConfigError if anything was added.
  void refuse(const std::string& folder) const;

 private:
  int64_t count_ = 0;
  std::string text_;
};

/// "[20, 24]".
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace ottava::checkpoint
