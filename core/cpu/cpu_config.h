#pragma once

#include "core/config/declare.h"

namespace ottava {

/// Section `cpu`. What keys mean: cpu_config.cpp.
struct CpuConfig {
  /// automatic: measured, or the usual way; else as cpu::Bf16Products (core/cpu/bf16_products.h).
  enum class Products { automatic, direct, widened };

  Products bf16_matmul = Products::automatic, bf16_attention = Products::automatic;
  bool operator==(const CpuConfig&) const = default;
};

void declare(config::Section& s, CpuConfig& c);

}  // namespace ottava
