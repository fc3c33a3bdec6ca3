#include "parallel/pipeline/schedule.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "core/error.h"
#include "core/text/counted.h"
#include "core/text/listed.h"

namespace ottava {
namespace {

using Kind = Action::Kind;
using List = std::vector<Action>;

constexpr std::array<std::string_view, 6> kNames = {
    "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble"};
// TorchTitan's other names.
constexpr std::array<std::string_view, 3> kNotBuilt = {"DualPipeV", "PipelineScheduleSingle",
                                                       "PipelineScheduleMulti"};

bool equal_in_any_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

std::string all_names() {
  return listed(kNames, [](std::string_view name) { return name; });
}

/// A list of actions that takes the micro-batches of each kind and chunk in ascending order.
class Writer {
 public:
  explicit Writer(const PipelineShape& shape) : next_(4 * shape.chunks) {}
  void add(Kind kind, int chunk) {
    int& next = next_[static_cast<size_t>(4 * chunk) + static_cast<size_t>(kind)];
    list_.push_back({kind, chunk, next++});
  }
  List take() { return std::move(list_); }

 private:
  std::vector<int> next_;
  List list_;
};

List gpipe(const PipelineShape& s) {
  Writer out(s);
  for (int m = 0; m < s.micro_batches; ++m) out.add(Kind::F, 0);
  for (int m = 0; m < s.micro_batches; ++m) out.add(Kind::B, 0);
  return out.take();
}

List one_f_one_b(const PipelineShape& s, int rank) {
  Writer out(s);
  const int ahead = std::min(s.micro_batches, s.ranks - rank);
  for (int m = 0; m < ahead; ++m) out.add(Kind::F, 0);
  for (int m = ahead; m < s.micro_batches; ++m) out.add(Kind::B, 0), out.add(Kind::F, 0);
  for (int m = 0; m < ahead; ++m) out.add(Kind::B, 0);
  return out.take();
}

List looped_bfs(const PipelineShape& s) {
  Writer out(s);
  for (int chunk = 0; chunk < s.chunks; ++chunk)
    for (int m = 0; m < s.micro_batches; ++m) out.add(Kind::F, chunk);
  for (int chunk = s.chunks; chunk-- > 0;)
    for (int m = 0; m < s.micro_batches; ++m) out.add(Kind::B, chunk);
  return out.take();
}

int rounds_of(const PipelineShape& s) { return std::max(1, s.micro_batches / s.ranks); }

// Micro-batches go round by round and, within a round, chunk by chunk. With zero bubbles, one hop from the
// last rank costs one forward instead of two, and weight gradients begin `rank` backwards later.
List interleaved(const PipelineShape& s, int rank) {
  const bool splits = splits_backward(s.schedule);
  const int of_round = s.micro_batches / rounds_of(s), all = s.chunks * s.micro_batches;
  const int ahead = std::min(all, (s.chunks - 1) * of_round + (splits ? 1 : 2) * (s.ranks - 1 - rank));
  Writer out(s);
  auto chunk_at = [&](int step) { return step / of_round % s.chunks; };
  auto backward_chunk_at = [&](int step) { return s.chunks - 1 - chunk_at(step); };
  int weights = 0;
  for (int step = 0; step < all + ahead; ++step) {
    if (step < all) out.add(Kind::F, chunk_at(step));
    if (step < ahead) continue;
    const int backward = step - ahead;
    out.add(splits ? Kind::I : Kind::B, backward_chunk_at(backward));
    if (splits && backward >= rank) out.add(Kind::W, backward_chunk_at(weights++));
  }
  while (splits && weights < all) out.add(Kind::W, backward_chunk_at(weights++));
  return out.take();
}

// Written for 2 * ranks - 1 micro-batches or more; if there are fewer, the missing ones are left out.
List zbv(const PipelineShape& s, int rank) {
  const int micro_batches = std::max(2 * s.ranks - 1, s.micro_batches);
  Writer out(s);
  std::array<int, 2> forwards = {}, inputs = {}, weights = {};
  auto forward = [&](size_t chunk) { ++forwards[chunk], out.add(Kind::F, static_cast<int>(chunk)); };
  auto input = [&](size_t chunk) { ++inputs[chunk], out.add(Kind::I, static_cast<int>(chunk)); };
  auto weight = [&](size_t chunk) { ++weights[chunk], out.add(Kind::W, static_cast<int>(chunk)); };
  for (int i = 0; i < 2 * (s.ranks - rank) - 1; ++i) forward(0);
  for (int i = 0; i < rank; ++i) forward(1), forward(0);
  for (int i = 0; i < s.ranks - rank; ++i) forward(1), input(1), weight(1);
  while (forwards[1] < forwards[0] || forwards[0] < micro_batches) {
    if (forwards[0] < micro_batches) forward(0);
    input(0), weight(0);
    forward(1), input(1), weight(1);
  }
  for (int i = 0; i < rank; ++i) input(0), input(1);
  for (int i = 0; i < s.ranks - rank; ++i) input(0), weight(0);
  while (weights[1] < inputs[1]) weight(1);
  while (weights[0] < inputs[0]) weight(0);
  List list = out.take();
  std::erase_if(list, [&](const Action& a) { return a.micro_batch >= s.micro_batches; });
  return list;
}

List list_of(const PipelineShape& s, int rank) {
  switch (s.schedule) {
    case ScheduleKind::gpipe:
      return gpipe(s);
    case ScheduleKind::one_f_one_b:
      return one_f_one_b(s, rank);
    case ScheduleKind::looped_bfs:
      return looped_bfs(s);
    case ScheduleKind::zbv_zero_bubble:
      return zbv(s, rank);
    default:
      return interleaved(s, rank);
  }
}

}  // namespace

std::string_view name_of(ScheduleKind kind) { return kNames[static_cast<size_t>(kind)]; }

ScheduleKind schedule_named(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (equal_in_any_case(name, kNames[i])) return static_cast<ScheduleKind>(i);
  for (std::string_view other : kNotBuilt) {
    if (equal_in_any_case(name, other))
      fail<ConfigError>("pipeline", "schedule {} is not supported: expected one of {}", other, all_names());
  }
  fail<ConfigError>("pipeline", "schedule \"{}\" is unknown: expected one of {}", name, all_names());
}

bool is_looped(ScheduleKind kind) { return kind != ScheduleKind::gpipe && kind != ScheduleKind::one_f_one_b; }

bool splits_backward(ScheduleKind kind) {
  return kind == ScheduleKind::interleaved_zero_bubble || kind == ScheduleKind::zbv_zero_bubble;
}

int PipelineShape::stage_of(int rank, int chunk) const {
  const bool returns = schedule == ScheduleKind::zbv_zero_bubble && chunk == 1;
  return chunk * ranks + (returns ? ranks - 1 - rank : rank);
}

int PipelineShape::rank_of(int stage) const {
  const bool returns = schedule == ScheduleKind::zbv_zero_bubble && stage >= ranks;
  return returns ? ranks - 1 - stage % ranks : stage % ranks;
}

std::string complaint_about(const PipelineShape& s) {
  const std::string schedule =
      fmt::format("schedule {} on {}", name_of(s.schedule), counted(s.ranks, "rank"));
  if (s.ranks < 1 || s.chunks < 1 || s.micro_batches < 1)
    return fmt::format("{} has {} and {}: expected at least one of each", schedule,
                       counted(s.chunks, "stage"), counted(s.micro_batches, "micro-batch", "micro-batches"));
  if (!is_looped(s.schedule) && s.chunks != 1)
    return fmt::format(
        "{} needs 1 stage on each rank, got {}: raise parallelism.pipeline_parallel_layers_per_stage or name "
        "fewer parallelism.pipeline_parallel_split_points, or use Interleaved1F1B",
        schedule, s.chunks);
  if (is_looped(s.schedule) && s.chunks < 2)
    return fmt::format(
        "{} needs at least 2 stages on each rank, got 1: lower "
        "parallelism.pipeline_parallel_layers_per_stage or name more "
        "parallelism.pipeline_parallel_split_points, or use 1F1B",
        schedule);
  if (s.schedule == ScheduleKind::zbv_zero_bubble && s.chunks != 2)
    return fmt::format(
        "{} needs 2 stages on each rank, got {}: change parallelism.pipeline_parallel_layers_per_stage or "
        "parallelism.pipeline_parallel_split_points so that there are {}, or use InterleavedZeroBubble",
        schedule, s.chunks, 2 * s.ranks);
  const char* const more =
      "raise training.local_batch_size or lower "
      "parallelism.pipeline_parallel_microbatch_size";
  if (s.micro_batches < s.ranks && s.schedule != ScheduleKind::gpipe &&
      s.schedule != ScheduleKind::looped_bfs)
    return fmt::format("{} needs at least {}, got {}: {}, or use {}", schedule,
                       counted(s.ranks, "micro-batch", "micro-batches"), s.micro_batches, more,
                       is_looped(s.schedule) ? "LoopedBFS" : "GPipe");
  const bool has_rounds =
      s.schedule == ScheduleKind::interleaved_1f1b || s.schedule == ScheduleKind::interleaved_zero_bubble;
  if (has_rounds && s.micro_batches % rounds_of(s) != 0)
    return fmt::format(
        "{} makes {} of its {} micro-batches ({} / {}), and {} / {} is not whole: change "
        "training.local_batch_size or parallelism.pipeline_parallel_microbatch_size",
        schedule, counted(rounds_of(s), "round"), s.micro_batches, s.micro_batches, s.ranks, s.micro_batches,
        rounds_of(s));
  return {};
}

PipelineSchedule make_schedule(const PipelineShape& shape) {
  const std::string complaint = complaint_about(shape);
  if (!complaint.empty()) fail<ConfigError>("pipeline", "{}", complaint);
  PipelineSchedule out{shape, {}};
  for (int rank = 0; rank < shape.ranks; ++rank) out.ranks.push_back(list_of(shape, rank));
  return out;
}

}  // namespace ottava
