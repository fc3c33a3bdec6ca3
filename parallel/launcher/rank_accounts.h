#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallel/ranks/account.h"

namespace ottava {

/// Why a rank ended, as it told its launcher (tell_launcher()).
struct RankAccount {
  std::string text, line;
  Printed printed = Printed::to_stdout;
};

/// Takes the first whole account away from what has been read of a rank; nothing if there is none yet.
std::optional<RankAccount> take_account(std::string& read);

/// What the ranks of a launcher said of why they ended, by text.
class RankAccounts {
 public:
  enum class Shown { yes, no };
  /// `shown` says whether the rank's lines are. Returns whether this one is to be: no other rank has shown
  /// the same.
  bool add(int rank, std::string text, Shown shown);
  bool has(int rank) const;
  /// The last words of a launcher of so many ranks: each text with the ranks that said it. Where all said the
  /// same, and its line is to be read above, that.
  std::string summary(int ranks, bool is_read_with_lines) const;

 private:
  struct Said {
    std::string text;
    std::vector<int> ranks;
    Shown shown = Shown::no;
  };
  std::vector<Said> all_;
};

}  // namespace ottava
