#include "apps/step/global_loss.h"

#include "parallel/comm/agree.h"

namespace ottava {

GlobalLoss global_loss(RankGroups& ranks, double sum, double tokens) {
  double sums[2] = {sum, tokens}, sequences[2] = {sum, tokens}, largest[1] = {};
  reduce_on_host(*ranks.control_cp, view_of(sequences, {2}), "loss");
  if (sequences[1] > 0) largest[0] = sequences[0] / sequences[1];
  reduce_on_host(*ranks.control_loss, view_of(sums, {2}), "loss");
  reduce_on_host(*ranks.control_loss, view_of(largest, {1}), "largest loss", ReduceOp::max);
  return {sums[1] > 0 ? sums[0] / sums[1] : 0, largest[0], sums[1]};
}

}  // namespace ottava
