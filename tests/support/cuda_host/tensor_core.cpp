#include <cstring>

#include "execution.h"

// Fragment layouts are those of the PTX ISA, section "Matrix Fragments for mma.m16n8k16" and "ldmatrix": with
// g = lane / 4 and t = lane % 4, register r of A holds row g + 8 (r & 1), columns 2t + 8 (r >> 1) and the
// next; register r of B rows (k) 2t + 8r and the next of column g; element r of C and D row g + 8 (r >> 1),
// column 2t + (r & 1).
namespace ottava::cuda_host {
namespace {

float low_half(uint32_t pair) {
  uint32_t bits = pair << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
float high_half(uint32_t pair) { return low_half(pair >> 16); }

void need_whole_warp(const char* name, unsigned lanes, const Site& site) {
  if (lanes != ~0u) fail_kernel(site, "%s needs all 32 lanes, got %08x", name, lanes);
}

struct MmaPayload {
  float* d;
  const uint32_t *a, *b;
};

void mma(void** payloads, unsigned lanes, const Site& site) {
  need_whole_warp("mma.sync", lanes, site);
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& p = *static_cast<MmaPayload*>(payloads[lane]);
    int g = lane / 4, t = lane % 4 * 2;
    for (int r = 0; r < 4; ++r) {
      float* pair = &a[g + 8 * (r & 1)][t + 8 * (r >> 1)];
      pair[0] = low_half(p.a[r]);
      pair[1] = high_half(p.a[r]);
    }
    for (int r = 0; r < 2; ++r) {
      b[t + 8 * r][g] = low_half(p.b[r]);
      b[t + 8 * r + 1][g] = high_half(p.b[r]);
    }
  }
  float d[16][8];
  for (int i = 0; i < 16; ++i) {
    float row[8] = {};
    for (int k = 0; k < 16; ++k) {
      for (int j = 0; j < 8; ++j) row[j] += a[i][k] * b[k][j];
    }
    std::memcpy(d[i], row, sizeof row);
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto& p = *static_cast<MmaPayload*>(payloads[lane]);
    int g = lane / 4, t = lane % 4 * 2;
    for (int r = 0; r < 4; ++r) p.d[r] += d[g + 8 * (r >> 1)][t + (r & 1)];
  }
}

struct ExchangePayload {
  const uint16_t* row;
  uint32_t* out;
  int matrices;
  bool transposed;
};

void exchange(void** payloads, unsigned lanes, const Site& site) {
  need_whole_warp("ldmatrix", lanes, site);
  for (int lane = 0; lane < 32; ++lane) {
    const auto& p = *static_cast<ExchangePayload*>(payloads[lane]);
    int r = lane / 4, c = lane % 4 * 2;
    for (int m = 0; m < p.matrices; ++m) {
      auto element = [&](int row, int column) -> uint32_t {
        return static_cast<ExchangePayload*>(payloads[m * 8 + row])->row[column];
      };
      p.out[m] =
          p.transposed ? element(c, r) | element(c + 1, r) << 16 : element(r, c) | element(r, c + 1) << 16;
    }
  }
}

}  // namespace

void mma_m16n8k16_bf16(float* d, const uint32_t* a, const uint32_t* b, const Site& site) {
  MmaPayload payload{d, a, b};
  warp_collective("mma.sync", ~0u, false, &payload, mma, site);
}

void exchange_matrix(uint32_t* out, int matrices, bool transposed, const uint16_t* row, const Site& site) {
  ExchangePayload payload{row, out, matrices, transposed};
  warp_collective("ldmatrix", ~0u, false, &payload, exchange, site);
}

}  // namespace ottava::cuda_host
