#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "apps/data/left_out.h"
#include "core/data/mixed_loader.h"
#include "parallel/comm/communicator.h"

namespace ottava {

/// Rank 0 looks through the training data on behalf of all ranks, which read the same files. What it finds
/// goes to the log; a bad record that training.bad_records does not skip ends the run.
class DataWatch {
 public:
  /// `ranks` moves CPU tensors.
  DataWatch(data::MixedLoader& loader, Communicator& ranks) : loader_(loader), ranks_(ranks) {}

  /// Looks for about `seconds`, while the other ranks wait, whatever the time limit of their calls. All ranks
  /// call it, and throw DataError together.
  void look(double seconds);
  /// Continues in the background with what look() did not reach, one source after the other.
  void look_at_the_rest();
  /// Logs on rank 0 what was found since the last call, and what training itself left out. Returns whether
  /// the run must end.
  bool poll();
  /// Adds another reason to end the run; empty: none.
  void object(std::string problem);
  /// What is wrong, as far as this rank knows; empty: nothing is.
  const std::string& problem() const { return problem_; }
  /// Once poll() has been true on any rank: throws what was found, on all ranks. `not_saved`: why no
  /// checkpoint of this step is saved; empty: one is.
  [[noreturn]] void refuse(int64_t step, std::string_view not_saved);

 private:
  data::DataScan& scan(size_t source) { return loader_.sources()[source].loader->scan(); }
  void log_found(size_t source, const data::DataCheck& check) const;

  data::MixedLoader& loader_;
  Communicator& ranks_;
  std::optional<size_t> watched_;  ///< the source that is looked through in the background
  int64_t bad_found_ = 0;
  LeftOut left_out_;
  std::string problem_;
};

}  // namespace ottava
