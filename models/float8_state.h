#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "core/contains.h"
#include "core/memory/arena.h"
#include "fp8/amax_history.h"
#include "fp8/quantize_operand.h"
#include "fp8/recipe.h"
#include "parallel/sharding/rank_groups.h"

namespace ottava {

/// The FP8 products of one layer that have run: in which recipe, and how many of each kind.
struct Float8Runs {
  std::optional<fp8::RecipeName> recipe;  ///< absent: none ran
  std::array<int64_t, 3> products = {};   ///< by MatmulKind
  int64_t of(MatmulKind kind) const { return products[static_cast<size_t>(kind)]; }
  int64_t sum() const { return std::accumulate(products.begin(), products.end(), int64_t{0}); }
  bool operator==(const Float8Runs&) const = default;
};

/// What a model's FP8 products share from step to step, on the device: amaxes, flags and counters of every
/// operand made from activations and gradients, and the history of recipe `delayed`. Weights keep theirs in
/// Float8Weights.
///
/// Slots: product p has slot 2p for its input x and 2p + 1 for its output's gradient dy.
class Float8State {
 public:
  struct Options {
    std::vector<std::string> products;  ///< "layers.0.attention.wqkv", in slot order
    std::vector<bool> is_delayed;       ///< per product
    int64_t amax_history_length = 0, margin = 0;
    bool counts = false;    ///< keep statistics
    int64_t in_flight = 1;  ///< micro-batches that have amaxes of their own at one time
    bool has_history() const { return contains(is_delayed, true); }
  };
  /// Takes persistent memory.
  Float8State(Arena& arena, RankGroups& ranks, Options options);

  const Options& options() const { return options_; }

  /// Sets amaxes, flags and runs() to zero. With a full history, makes the scales of recipe `delayed` from
  /// it.
  void begin_step(Stream& stream);
  /// Adds the amaxes of the micro-batch before to those of the step, and sets them to zero.
  void begin_micro_batch(Stream& stream);
  /// Makes slots() those of this micro-batch (below options().in_flight) from now on. Used instead of
  /// begin_micro_batch().
  void select_micro_batch(int64_t micro_batch) { selected_ = micro_batch; }
  /// Begins anew only one product's slots: it runs in chunks, each of which has scales of its own.
  void begin_product(Stream& stream, int64_t product);
  /// For validation: scales are those of training, but nothing is remembered or counted.
  void begin_forward_only(Stream& stream);
  /// Makes step_amax(), the largest amaxes over the step's micro-batches; with `delayed` over all ranks, by
  /// one all-reduce.
  void finish_step(Stream& stream);
  /// To be called before each step with the factor by which it multiplies its loss. Gradients, and so dy's
  /// amaxes, contain that factor. If it differs from the one that the history was made with, dy's columns are
  /// rescaled, which synchronizes the stream.
  void follow_loss_scale(Stream& stream, double loss_scale);
  /// The loss scale in the history's gradients; 0 before the first step. Checkpoints keep it.
  double history_loss_scale() const { return history_loss_scale_; }
  void restore_loss_scale(double loss_scale) { history_loss_scale_ = loss_scale; }
  /// To be called after a step that was not skipped.
  void advance_history(Stream& stream);

  /// The slots of one operand. `amax` is this micro-batch's, raised by the producer or by quantize_operand();
  /// with recipe `delayed`, `scale_amax` comes from the history. No counters without statistics, or in
  /// validation.
  fp8::OperandSlots slots(int64_t slot) const;
  /// True if the slot's scale comes from the history, and so is known before the operand.
  bool scale_is_known(int64_t slot) const { return options_.is_delayed[slot / 2] && history_.is_full(); }

  /// For all slots, for the host to read: u32 amaxes of the last step, i64 [slots, 3] counters, u32 flags.
  const Tensor& step_amax() const { return largest_; }
  const Tensor& all_counters() const { return counters_; }
  /// Sets the counters to zero, if there are any: memory of a GPU holds anything at first.
  void clear_counters(Stream& stream);
  const Tensor& all_non_finite() const { return non_finite_; }
  fp8::AmaxHistory* history() { return history_.rows.empty() ? nullptr : &history_; }

  /// Notes that the product ran once on this rank, for runs().
  void count_product(int64_t product, fp8::RecipeName recipe, MatmulKind kind);
  /// What has run since begin_step(), on this rank.
  const Float8Runs& runs(int64_t product) const { return runs_[product]; }
  int64_t products_run() const;

 private:
  int64_t slot_count() const { return 2 * static_cast<int64_t>(options_.products.size()); }
  /// Slots [begin, end) of the micro-batch selected.
  Tensor current(int64_t begin, int64_t end) const {
    return current_.slice(selected_ * slot_count() + begin, selected_ * slot_count() + end);
  }

  RankGroups& ranks_;
  Options options_;
  Tensor current_, largest_, scale_amax_, counters_, non_finite_;
  fp8::AmaxHistory history_;
  double history_loss_scale_ = 0;
  bool is_forward_only_ = false;
  int64_t selected_ = 0;          ///< micro-batch
  std::vector<Float8Runs> runs_;  ///< per product
};

}  // namespace ottava
