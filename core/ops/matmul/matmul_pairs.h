#pragma once

#include <cstdint>

#include "core/cpu/dnnl_adapter.h"

namespace ottava::cpu {

/// True if matmul_pairs() takes the product: bf16, large enough, on a CPU that multiplies it directly. Rows
/// of A and B as stored must have a multiple of 16 elements, those of one of them a multiple of 32 if the sum
/// runs along neither.
bool pairs_take(const GemmProblem& problem);
/// True if A and B are stored by terms, as for a gradient of weights, and each thread's part of the result
/// fits in its cache and is worth packing for: then both are packed while they are multiplied, and read but
/// once or twice.
bool pairs_sum_in_cache(const GemmProblem& problem);
/// C (+)= (scale) A B of GemmProblem with all threads. Sums are added in the order of k: bitwise the same for
/// any number of threads. `scale` may be null. `workspace` has matmul_pairs_workspace_bytes(problem) bytes.
void matmul_pairs(const GemmProblem& problem, const void* a, const void* b, void* c, const float* scale,
                  void* workspace);
int64_t matmul_pairs_workspace_bytes(const GemmProblem& problem);

}  // namespace ottava::cpu
