#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"

// What ranks say to each other over a communicator that moves CPU tensors. All ranks make the call and wait
// for it. Throws CommError.
namespace ottava {

/// Every rank's number, by rank.
std::vector<int64_t> gather_number(Communicator& ranks, int64_t mine, std::string_view label);
/// Every rank's text, by rank. Each is sent at the length of the longest.
std::vector<std::string> gather_text(Communicator& ranks, std::string_view mine, std::string_view label);
/// Rank 0's text, on every rank; the others' `mine` is ignored. By the ring formula (comm_stats.h) no rank
/// sends more than twice the text's bytes.
std::string text_of_rank_0(Communicator& ranks, std::string_view mine, std::string_view label);

}  // namespace ottava
