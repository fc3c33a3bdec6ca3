#pragma once

#include <string_view>

#include "core/io/attempts.h"
#include "parallel/checkpoint/patient_ranks.h"

namespace ottava::checkpoint {

/// in_three_attempts() (core/io/attempts.h) of all ranks, with work that throws the same on all of them. Rank
/// 0 warns before each further attempt.
template <class Work>
auto in_three_attempts(const PatientRanks& group, std::string_view complaint, const Work& work,
                       double pause_seconds = kPauseSeconds) {
  return ottava::in_three_attempts(
      Attempts{.complaint = complaint, .pause_seconds = pause_seconds, .is_told = group.rank() == 0}, work);
}

}  // namespace ottava::checkpoint
