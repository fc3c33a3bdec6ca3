#pragma once

#include <fstream>
#include <string>

#include "tests/support/tiny_training.h"

namespace ottava::test {

/// Three texts: two of some length, one of a few windows.
class MixedTraining : public TinyTraining {
 public:
  MixedTraining() {
    std::ofstream(*this / "web.txt") << generated_text(200, 11);
    std::ofstream(*this / "books.txt") << generated_text(80, 12);
    std::ofstream(*this / "notes.txt") << generated_text(6, 13);
  }
  /// `rest` of each source's table: "weight: 3".
  Overrides of(const std::string& web, const std::string& books, const std::string& notes,
               const Overrides& more = {}) const {
    auto source = [&](const std::string& name, const std::string& rest) {
      return "{name: " + name + ", path: " + (*this / (name + ".txt")) + ", " + rest + "}";
    };
    const std::string all =
        "[" + source("web", web) + ", " + source("books", books) + ", " + source("notes", notes) + "]";
    return Overrides{"--training.dataset_path", "[]", "--training.mixture", all} + more;
  }
};

}  // namespace ottava::test
