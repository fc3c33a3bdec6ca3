#include "core/cpu/bf16_products.h"

namespace ottava::cpu {

// The tiles are memory here (tiles.h); the kernels' other instructions are those of AVX-512.
bool multiplies_bf16_by_amx() { return multiplies_bf16_directly(); }

}  // namespace ottava::cpu
