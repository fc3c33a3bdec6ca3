#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ottava {

/// What a rank does next in a pipeline, for one micro-batch and one of its chunks: the forward pass (F), the
/// whole backward pass (B), or its two halves apart: the gradient of the chunk's input (I) and those of its
/// weights (W).
struct Action {
  enum class Kind : uint8_t { F, B, I, W };
  Kind kind = Kind::F;
  int chunk = 0;  ///< of the rank: 0 comes first in the model
  int micro_batch = 0;
  bool operator==(const Action&) const = default;
};

/// The schedules, with TorchTitan's names for `parallelism.pipeline_parallel_schedule`.
enum class ScheduleKind : uint8_t {
  gpipe,                    ///< GPipe: all forwards, all backwards (arXiv:1811.06965)
  one_f_one_b,              ///< 1F1B: a backward as soon as there is one (arXiv:1806.03377)
  interleaved_1f1b,         ///< Interleaved1F1B: the same with several chunks (arXiv:2104.04473)
  looped_bfs,               ///< LoopedBFS: chunk by chunk (arXiv:2211.05953)
  interleaved_zero_bubble,  ///< InterleavedZeroBubble: W fills the gaps (arXiv:2401.10241)
  zbv_zero_bubble,          ///< ZBVZeroBubble: two chunks, the second on the way back (the same, section 6)
};
std::string_view name_of(ScheduleKind kind);
/// Inverse of name_of(), in upper or lower case. Throws ConfigError for an unknown name, with the list of
/// names, and for schedules of TorchTitan that do not exist here.
ScheduleKind schedule_named(std::string_view name);
/// True if the schedule takes more than one chunk per rank.
bool is_looped(ScheduleKind kind);
/// True if the schedule has I and W as actions of their own.
bool splits_backward(ScheduleKind kind);

struct PipelineShape {
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int ranks = 1;
  int chunks = 1;  ///< of each rank
  int micro_batches = 1;
  int stages() const { return ranks * chunks; }
  /// Stages are counted in the model's order: chunk k of rank r is stage k * ranks + r; in a V schedule the
  /// second chunk is stage 2 * ranks - 1 - r.
  int stage_of(int rank, int chunk) const;
  int rank_of(int stage) const;
};

/// What is wrong with the shape, in one sentence with the numbers and what to do; empty: nothing.
std::string complaint_about(const PipelineShape& shape);

/// The lists of actions of all ranks. Every rank does every micro-batch of each of its chunks once. Within a
/// chunk, F, I, W and B each take micro-batches in ascending order, so that gradients are summed as without a
/// pipeline.
struct PipelineSchedule {
  PipelineShape shape;
  std::vector<std::vector<Action>> ranks;
};
/// Throws ConfigError with complaint_about().
PipelineSchedule make_schedule(const PipelineShape& shape);

}  // namespace ottava
