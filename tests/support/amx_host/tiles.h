#pragma once

#include <immintrin.h>

#include <cstdint>

/// AMX's tiles as ordinary memory: what Intel's manual says that the instructions do, for one thread each.
/// What a processor would answer with an exception (tiles that are not configured, shapes that do not fit
/// each other) ends the program with a sentence.
namespace ottava::amx_host {

/// LDTILECFG from 64 bytes. It sets all tiles to zero.
void load_config(const void* config);
/// TILERELEASE.
void release();
/// TILEZERO, TILELOADD and TILESTORED: `stride` is the bytes from a row to the next.
void zero(int tile);
void load(int tile, const void* base, int64_t stride);
void store(int tile, void* base, int64_t stride);
/// TDPBF16PS: sums += a b, of pairs of bf16. Subnormal numbers count as zero, and each product is added in
/// one rounding to nearest, the first of a pair before the second.
void add_products(int sums, int a, int b);

}  // namespace ottava::amx_host

// For kernel files, which this file is forced into: names of intrinsics that are functions or macros.
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig ottava::amx_host::load_config
#define _tile_release ottava::amx_host::release
#define _tile_zero ottava::amx_host::zero
#define _tile_loadd ottava::amx_host::load
#define _tile_stored ottava::amx_host::store
#define _tile_dpbf16ps ottava::amx_host::add_products
