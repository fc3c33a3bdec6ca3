#include "parallel/ranks/bootstrap.h"

#include "parallel/ranks/gather.h"

namespace ottava {

std::vector<std::string> CommunicatorBootstrap::all_gather(std::string_view mine) {
  return gather_text(communicator_, mine, "bootstrap");
}

}  // namespace ottava
