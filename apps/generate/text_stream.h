#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ottava {

/// Generated text on its way to the reader: whole characters only, up to the first stop string.
class TextStream {
 public:
  /// Throws ConfigError for an empty stop string.
  explicit TextStream(std::vector<std::string> stops);

  /// What can be shown once `more` has arrived. Bytes that may begin a stop string or an unfinished character
  /// wait.
  std::string take(std::string_view more);
  /// True once a stop string has arrived; it and what follows are not shown.
  bool stopped() const { return stopped_; }
  /// What is still waiting; to be called when nothing more comes.
  std::string rest();

 private:
  std::vector<std::string> stops_;
  std::string pending_;
  bool stopped_ = false;
};

}  // namespace ottava
