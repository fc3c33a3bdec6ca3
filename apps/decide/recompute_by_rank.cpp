#include "apps/decide/recompute_by_rank.h"

#include <fmt/core.h>

#include <numeric>

#include "core/text/listed.h"

namespace ottava {

RecomputeByRank::RecomputeByRank(const TrainingShape& shape) {
  const auto layers = static_cast<size_t>(shape.model.layers);
  const PipelineLayout& pipeline = shape.pipeline;
  if (pipeline.is_on()) {
    blocks_.resize(pipeline.shape.ranks);
    for (size_t rank = 0; rank < ranks(); ++rank) {
      const std::vector<bool> units = pipeline.units_of(static_cast<int>(rank));  // the embedding comes first
      for (size_t block = 0; block < layers; ++block)
        if (units[block + 1]) blocks_[rank].push_back(block);
    }
  } else {
    blocks_.emplace_back(layers);
    std::iota(blocks_[0].begin(), blocks_[0].end(), size_t{0});
  }
  for (const std::vector<size_t>& held : blocks_) choices_.push_back(recompute_choices(std::ssize(held)));
}

bool RecomputeByRank::recompute_more(Choices& choices, size_t rank, Step step) const {
  const std::vector<RecomputeChoice>& all = choices_[rank];
  for (size_t next = choices[rank] + 1; next < all.size(); ++next) {
    if (step == Step::by_modes && !all[next].is_mode) continue;
    if (all[next].blocks == all[choices[rank]].blocks) continue;  // few blocks, of which it takes none
    choices[rank] = next;
    return true;
  }
  return false;
}

void RecomputeByRank::recompute_less(Choices& choices, size_t rank) const {
  size_t& choice = choices[rank];
  while (choice > 1 && !choices_[rank][choice - 1].is_mode) --choice;
}

std::vector<Recompute> RecomputeByRank::blocks(const Choices& choices) const {
  size_t layers = 0;
  for (const std::vector<size_t>& held : blocks_) layers += held.size();
  std::vector<Recompute> out(layers);
  for (size_t rank = 0; rank < ranks(); ++rank) {
    for (size_t i = 0; i < blocks_[rank].size(); ++i)
      out[blocks_[rank][i]] = choices_[rank][choices[rank]].blocks[i];
  }
  return out;
}

std::string RecomputeByRank::text(const Choices& choices) const {
  const auto name = [&](size_t rank) -> const std::string& { return choices_[rank][choices[rank]].name; };
  std::string text;
  for (size_t first = 0, end = 0; first < ranks(); first = end) {
    while (end < ranks() && name(end) == name(first)) ++end;
    if (end - first == ranks()) return name(first);
    add_item(text,
             end - first == 1 ? fmt::format("pp rank {}: {}", first, name(first))
                              : fmt::format("pp ranks {} to {}: {}", first, end - 1, name(first)),
             "; ");
  }
  return text;
}

}  // namespace ottava
