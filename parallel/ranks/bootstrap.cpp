#include "parallel/ranks/bootstrap.h"

#include <numeric>

namespace ottava {

std::vector<std::string> CommunicatorBootstrap::all_gather(std::string_view mine) {
  Stream stream = Stream::cpu();
  int64_t n = size(), length = std::ssize(mine);
  std::vector<int64_t> lengths(n);
  communicator_
      .all_gather(
          stream,
          {.send = view_of(&length, {1}), .recv = view_of(lengths.data(), {n}), .label = "bootstrap.lengths"})
      .wait(stream);
  int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  std::string all(total, '\0');
  auto bytes = [](const char* data, int64_t count) {
    return Tensor{const_cast<char*>(data), DType::u8, {count}};
  };
  communicator_
      .all_gather(stream, {.send = bytes(mine.data(), length),
                           .recv = bytes(all.data(), total),
                           .counts = lengths,
                           .label = "bootstrap"})
      .wait(stream);
  std::vector<std::string> said;
  size_t begin = 0;
  for (int64_t count : lengths) {
    said.push_back(all.substr(begin, count));
    begin += count;
  }
  return said;
}

}  // namespace ottava
