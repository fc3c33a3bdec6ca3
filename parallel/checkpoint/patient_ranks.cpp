#include "parallel/checkpoint/patient_ranks.h"

#include "parallel/comm/agree.h"
#include "parallel/comm/gather.h"
#include "parallel/comm/patience.h"

namespace ottava::checkpoint {

std::vector<std::string> PatientRanks::all_gather(std::string_view text) {
  if (size() == 1) return {std::string(text)};
  const Patience patience(*communicator_);
  return gather_text(*communicator_, text, "checkpoint");
}

std::string PatientRanks::of_rank_0(std::string_view text) {
  if (size() == 1) return std::string(text);
  const Patience patience(*communicator_);
  return text_of_rank_0(*communicator_, text, "checkpoint");
}

void PatientRanks::sum(std::span<uint64_t> values) {
  if (size() == 1 || values.empty()) return;
  // Halves of 32 bits summed as i64: no overflow for any number of ranks, and the carry is exact.
  std::vector<int64_t> halves(2 * values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    halves[2 * i] = values[i] & 0xffffffffu;
    halves[2 * i + 1] = values[i] >> 32;
  }
  reduce_on_host(*communicator_, view_of(halves.data(), {std::ssize(halves)}), "checkpoint");
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<uint64_t>(halves[2 * i]) + (static_cast<uint64_t>(halves[2 * i + 1]) << 32);
  }
}

void PatientRanks::require_equal(std::string_view what, uint64_t hash) {
  if (size() == 1) return;
  const Patience patience(*communicator_);
  require_equal_everywhere(*communicator_, what, hash);
}

void PatientRanks::together(const std::function<void()>& work) {
  if (size() == 1) return work();
  const Patience patience(*communicator_);
  fail_together(*communicator_, "checkpoint", work);
}

void PatientRanks::on_rank_0(const std::function<void()>& work) {
  together([&] {
    if (rank() == 0) work();
  });
}

}  // namespace ottava::checkpoint
