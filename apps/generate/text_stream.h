#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ottava {

/// Generated text on its way to people: whole characters only, up to the first of the stop strings.
class TextStream {
 public:
  /// Empty stop strings are refused with ConfigError.
  explicit TextStream(std::vector<std::string> stops);

  /// What can be shown once `more` has come. Bytes that may begin a stop string, or a character of which more
  /// is to come, wait.
  std::string take(std::string_view more);
  /// A stop string has come: it and what follows are not shown.
  bool stopped() const { return stopped_; }
  /// What waited, when nothing more comes.
  std::string rest();

 private:
  std::vector<std::string> stops_;
  std::string pending_;
  bool stopped_ = false;
};

}  // namespace ottava
