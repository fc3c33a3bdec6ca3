#include "models/llama/recompute.h"

#include <fmt/core.h>

namespace ottava {
namespace {

using Mode = ActivationCheckpointConfig::Mode;

std::vector<Recompute> in_all(int64_t layers, Recompute what) { return std::vector<Recompute>(layers, what); }

// In `some` of `every` blocks, spread evenly; the last of each `every` is among them.
std::vector<Recompute> in_some(int64_t some, int64_t every, Recompute what, std::vector<Recompute> blocks) {
  for (int64_t i = 0; i < std::ssize(blocks); ++i)
    if ((i + 1) * some / every > i * some / every) blocks[i] = what;
  return blocks;
}

}  // namespace

std::vector<Recompute> resolve_recompute(const ActivationCheckpointConfig& c, int64_t layers) {
  switch (c.mode) {
    case Mode::none:
      return in_all(layers, Recompute::nothing);
    case Mode::full:
      return in_all(layers, Recompute::block);
    case Mode::automatic:
      return recompute_choices(layers).front().blocks;
    case Mode::selective:
      break;
  }
  if (c.per_op()) return in_all(layers, Recompute::elementwise);
  if (c.all_but_attention()) return in_all(layers, Recompute::all_but_attention);
  return in_some(1, c.every_nth_block(), Recompute::block, in_all(layers, Recompute::nothing));
}

std::vector<RecomputeChoice> recompute_choices(int64_t layers) {
  const std::vector<Recompute> none = in_all(layers, Recompute::nothing),
                               op = in_all(layers, Recompute::elementwise);
  struct Part {
    int64_t some, every;
  };
  std::vector<RecomputeChoice> out{{"none", none, true}};
  for (const auto& [some, every] : {Part{1, 4}, Part{1, 2}, Part{3, 4}}) {
    out.push_back({fmt::format("op of {} in {} blocks", some, every),
                   in_some(some, every, Recompute::elementwise, none)});
  }
  out.push_back({"op", op, true});
  for (const auto& [some, every] : {Part{1, 8}, Part{1, 4}, Part{1, 2}, Part{3, 4}}) {
    out.push_back({fmt::format("op, all but attention of {} in {} blocks", some, every),
                   in_some(some, every, Recompute::all_but_attention, op)});
  }
  out.push_back({"all_but_attention", in_all(layers, Recompute::all_but_attention), true});
  out.push_back({"full", in_all(layers, Recompute::block), true});
  return out;
}

}  // namespace ottava
