#pragma once

#include <memory>

#include "core/cuda/cudnn_graphs.h"
#include "core/cuda/fused_attention.h"
#include "core/error.h"
#include "tests/support/devices.h"
#include "tests/support/skip.h"

namespace ottava::test::attention {

/// cuDNN's attention on the first GPU; null where the binary or the machine has none, and the case is
/// skipped.
inline std::unique_ptr<cuda::FusedAttention> cudnn_or_skipped() {
  try {
    if (has_gpu() && cuda::cudnn_is_built())
      return std::make_unique<cuda::FusedAttention>(0, cuda::FusedAttention::Backward::deterministic);
    skip(has_gpu() ? "this program was built without cuDNN's attention" : kNoGpu);
  } catch (const DeviceError& error) {
    skip(error.what());
  }
  return nullptr;
}

}  // namespace ottava::test::attention
