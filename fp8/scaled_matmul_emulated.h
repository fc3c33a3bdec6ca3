#pragma once

#include "fp8/scaled_matmul_kernels.h"

namespace ottava::fp8 {

/// scaled_matmul() in bf16 on the same codes. Operands are widened into the workspace, with block scales
/// multiplied in, and multiplied by the bf16 product. Scales of rows and tensors then multiply its sums: a
/// tensor's scale as the sums are made, where the product takes one (matmul_takes_scale()), other scales in a
/// pass of their own. Arguments have been checked; throws NumericsError for block scales that are no powers
/// of two, or such that finite bf16 values do not have.
void scaled_matmul_emulated(Stream& stream, const ScaledProduct& args);
int64_t emulated_workspace_bytes(Stream& stream, const ScaledProduct& args);
/// The bf16 product, with operands in the workspace that begins at `memory`; null: only its shapes.
Matmul emulated_product(Stream& stream, const ScaledProduct& args, uint8_t* memory = nullptr);

}  // namespace ottava::fp8
