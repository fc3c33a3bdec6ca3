#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "parallel/calls/rank_state.h"

namespace ottava {

/// A message between a rank and a ledger server.
struct LedgerMessage {
  enum class Kind : char {
    report = 'R',     ///< rank -> server: a record
    farewell = 'G',   ///< rank -> server: closing is no failure; server -> rank: this server ends orderly
    failed = 'F',     ///< rank -> server: this rank stops; the text says why
    question = 'Q',   ///< rank -> server: a call makes no progress; the text says which
    roll_call = 'A',  ///< server -> rank: report now
    /// rank -> server: the record asked for, with counts of messages; a report that was under way when asked
    /// is older
    present = 'P',
    stop = 'X',  ///< server -> rank: the verdict
  };
  Kind kind = Kind::report;
  ProgressRecord record;  ///< of a report; its rank is the sender's in all messages to a server
  std::string text;

  std::string encode() const;
  /// Nothing for bytes that are not a message.
  static std::optional<LedgerMessage> decode(std::string_view bytes);
};

}  // namespace ottava
