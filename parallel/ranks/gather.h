#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"

// What ranks say to each other over a communicator that moves CPU tensors. All ranks make the call and wait
// for it. Throws CommError.
namespace ottava {

/// Every rank's, by rank.
std::vector<int64_t> gather_number(Communicator& ranks, int64_t mine, std::string_view label);
/// Every rank's, by rank; every text takes the room of the longest.
std::vector<std::string> gather_text(Communicator& ranks, std::string_view mine, std::string_view label);
/// That of rank 0, on every rank; what the others say is not read. No rank sends more than twice its bytes.
std::string text_of_rank_0(Communicator& ranks, std::string_view mine, std::string_view label);

}  // namespace ottava
