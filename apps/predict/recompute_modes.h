#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "apps/predict/layout.h"
#include "core/contains.h"

namespace ottava {

// The modes of recomputation that a search tries, each as its layouts have it.
inline const ActivationCheckpointConfig kModeNone{.mode = ActivationCheckpointConfig::Mode::none,
                                                  .selective_ac_option = "op"},
    kModeOp{.mode = ActivationCheckpointConfig::Mode::selective, .selective_ac_option = "op"},
    kModeAllButAttention{.mode = ActivationCheckpointConfig::Mode::selective,
                         .selective_ac_option = "all_but_attention"},
    kModeFull{.mode = ActivationCheckpointConfig::Mode::full, .selective_ac_option = "op"},
    kModeAuto{.mode = ActivationCheckpointConfig::Mode::automatic};

/// Whether what mode auto came to is what another mode does in every block.
inline bool is_a_mode(std::string_view recompute) {
  return contains(std::array{"none", "op", "all_but_attention", "full"}, recompute);
}

/// Whether mode auto comes to something between this layout's mode and the next, which recomputes more, where
/// only the next fits: between all but attention and everything only for a pipeline, whose ranks differ.
inline bool is_before_between(const Layout& l) {
  return l.recompute == kModeNone || l.recompute == kModeOp ||
         (l.pp > 1 && l.recompute == kModeAllButAttention);
}
/// The mode of which that is true and after which this layout's comes; none if there is none.
inline std::optional<ActivationCheckpointConfig> mode_before_between(const Layout& l) {
  if (l.recompute == kModeOp) return kModeNone;
  if (l.recompute == kModeAllButAttention) return kModeOp;
  if (l.pp > 1 && l.recompute == kModeFull) return kModeAllButAttention;
  return {};
}

}  // namespace ottava
