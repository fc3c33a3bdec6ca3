#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"

// What every rank says, by rank, over a communicator that moves CPU tensors. All ranks make the call and wait
// for it. Throws CommError.
namespace ottava {

std::vector<int64_t> gather_number(Communicator& ranks, int64_t mine, std::string_view label);
/// Every text takes the room of the longest.
std::vector<std::string> gather_text(Communicator& ranks, std::string_view mine, std::string_view label);

}  // namespace ottava
