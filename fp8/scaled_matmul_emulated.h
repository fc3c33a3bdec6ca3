#pragma once

#include "fp8/scaled_matmul_kernels.h"

namespace ottava::fp8 {

/// scaled_matmul in bf16 on the same codes: operands are widened into the workspace (scales of blocks
/// multiplied in), multiplied by the bf16 product, and scales of rows and tensors multiply its sums: a
/// tensor's as they are made, where the product takes one (matmul_takes_scale), else in a pass of their own.
/// Arguments are checked.
void scaled_matmul_emulated(Stream& stream, const ScaledProduct& args);
int64_t emulated_workspace_bytes(Stream& stream, const ScaledProduct& args);
/// The bf16 product in the workspace that `memory` begins; null: only its shapes.
Matmul emulated_product(Stream& stream, const ScaledProduct& args, uint8_t* memory = nullptr);

}  // namespace ottava::fp8
