#include "parallel/comm/gather.h"

#include <algorithm>

#include "parallel/comm/agree.h"

namespace ottava {
namespace {

void gather(Communicator& ranks, const Tensor& mine, const Tensor& all, std::string_view label) {
  Stream stream = Stream::cpu();
  ranks.all_gather(stream, {.send = mine, .recv = all, .label = label}).wait(stream);
}

}  // namespace

std::vector<int64_t> gather_number(Communicator& ranks, int64_t mine, std::string_view label) {
  std::vector<int64_t> all(ranks.size());
  gather(ranks, view_of(&mine, {1}), view_of(all.data(), {ranks.size()}), label);
  return all;
}

std::vector<std::string> gather_text(Communicator& ranks, std::string_view mine, std::string_view label) {
  const std::vector<int64_t> lengths = gather_number(ranks, std::ssize(mine), label);
  const int64_t longest = std::ranges::max(lengths);
  std::vector<std::string> texts(lengths.size());
  if (longest == 0) return texts;
  std::vector<uint8_t> padded(mine.begin(), mine.end()), all(longest * lengths.size());
  padded.resize(longest);
  gather(ranks, view_of(padded.data(), {longest}), view_of(all.data(), {std::ssize(all)}), label);
  for (size_t r = 0; r < texts.size(); ++r) {
    const auto begin = all.begin() + r * longest;
    texts[r].assign(begin, begin + lengths[r]);
  }
  return texts;
}

std::string text_of_rank_0(Communicator& ranks, std::string_view mine, std::string_view label) {
  if (ranks.rank() != 0) mine = {};
  // Sums, to which the other ranks add nothing; a gather would move a text of every rank.
  int64_t length = std::ssize(mine);
  reduce_on_host(ranks, view_of(&length, {1}), label);
  if (length == 0) return "";
  std::vector<uint32_t> words((length + 3) / 4);
  std::ranges::copy(mine, reinterpret_cast<char*>(words.data()));
  reduce_on_host(ranks, view_of(words.data(), {std::ssize(words)}), label);
  return std::string(reinterpret_cast<const char*>(words.data()), length);
}

}  // namespace ottava
