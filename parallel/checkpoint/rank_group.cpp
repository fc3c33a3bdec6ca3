#include "parallel/checkpoint/rank_group.h"

#include "parallel/ranks/agree.h"

namespace ottava::checkpoint {

namespace {

// The first letter says which kind of error the rest is.
constexpr char kConfig = 'C', kOther = 'F';

std::string outcome_of(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const CommError&) {
    throw;
  } catch (const ConfigError& error) {
    return kConfig + std::string(error.what());
  } catch (const std::exception& error) {
    return kOther + std::string(error.what());
  }
}

}  // namespace

Stream& RankGroup::stream() {
  if (!stream_) stream_.emplace(Stream::cpu());
  return *stream_;
}

std::vector<std::string> RankGroup::all_gather(std::string_view text) {
  if (size() == 1) return {std::string(text)};
  int64_t ranks = size();
  auto mine = std::ssize(text);
  std::vector<int64_t> counts(ranks);
  communicator_
      ->all_gather(
          stream(),
          {.send = view_of(&mine, {1}), .recv = view_of(counts.data(), {ranks}), .label = "checkpoint"})
      .wait(stream());
  int64_t total = 0;
  for (int64_t count : counts) total += count;
  std::vector<std::string> texts(counts.size());
  if (total == 0) return texts;
  // Ranks without text still need an address to send nothing from.
  std::vector<uint8_t> send(text.begin(), text.end()), all(total);
  send.reserve(1);
  communicator_
      ->all_gather(stream(), {.send = view_of(send.data(), {mine}),
                              .recv = view_of(all.data(), {total}),
                              .counts = counts,
                              .label = "checkpoint"})
      .wait(stream());
  auto next = all.begin();
  for (size_t r = 0; r < counts.size(); ++r) {
    texts[r].assign(next, next + counts[r]);
    next += counts[r];
  }
  return texts;
}

void RankGroup::sum(std::span<uint64_t> values) {
  if (size() == 1 || values.empty()) return;
  // Halves of 32 bits summed as i64: no overflow for any number of ranks, and the carry is exact.
  std::vector<int64_t> halves(2 * values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    halves[2 * i] = values[i] & 0xffffffffu;
    halves[2 * i + 1] = values[i] >> 32;
  }
  Tensor all = view_of(halves.data(), {std::ssize(halves)});
  communicator_->all_reduce(stream(), {.send = all, .recv = all, .label = "checkpoint"}).wait(stream());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<uint64_t>(halves[2 * i]) + (static_cast<uint64_t>(halves[2 * i + 1]) << 32);
  }
}

void RankGroup::together(const std::function<void()>& work) {
  if (size() == 1) return work();
  std::vector<std::string> outcomes = all_gather(outcome_of(work));
  for (size_t r = 0; r < outcomes.size(); ++r) {
    if (outcomes[r].empty()) continue;
    meet_before_refusing(*communicator_);
    std::string message = fmt::format("[checkpoint] rank {}: {}", r, outcomes[r].substr(1));
    if (outcomes[r][0] == kConfig) throw ConfigError(message);
    throw FileError(message);
  }
}

void RankGroup::on_rank_0(const std::function<void()>& work) {
  together([&] {
    if (rank() == 0) work();
  });
}

}  // namespace ottava::checkpoint
