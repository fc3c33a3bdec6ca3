#include "parallel/comm/bootstrap.h"

#include <random>

#include <fmt/core.h>

#include "parallel/comm/gather.h"

namespace ottava {

uint64_t job_token(Bootstrap& bootstrap) {
  std::string token;
  if (bootstrap.rank() == 0) {
    std::random_device random;
    token = fmt::format("{}", (uint64_t{random()} << 32) | random());
  }
  return std::stoull(bootstrap.all_gather(token)[0]);
}

std::vector<std::string> CommunicatorBootstrap::all_gather(std::string_view mine) {
  return gather_text(communicator_, mine, "bootstrap");
}

}  // namespace ottava
