#include "apps/data/left_out.h"

#include "core/log.h"
#include "core/text/counted.h"

namespace ottava {

void LeftOut::report(const data::DataStats& stats, std::string_view of, int ranks, std::string_view seq_len) {
  const std::string_view where = ranks > 1 ? " on rank 0" : "";
  if (stats.bad_records > 2 * bad_records_) {
    bad_records_ = stats.bad_records;
    log::warning("{}{}{} left out so far (training.bad_records: skip); the first: {}",
                 counted(bad_records_, "bad record"), of, where, stats.first_bad_record);
  }
  if (stats.too_long > 2 * too_long_) {
    too_long_ = stats.too_long;
    log::warning("{}{}{} left out so far as longer than {} + 1 tokens", counted(too_long_, "conversation"),
                 of, where, seq_len);
  }
  if (stats.joined_completions > 2 * joined_) {
    joined_ = stats.joined_completions;
    log::warning("In {}{}{} so far {}", counted(joined_, "completion"), of, where, kJoinedCompletions);
  }
}

}  // namespace ottava
