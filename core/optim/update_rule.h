#pragma once

namespace ottava {

/// What turns a gradient into a new weight: AdamW, with two moments, or Muon, with one moment and whole
/// matrices.
enum class UpdateRule { adamw, muon };

}  // namespace ottava
