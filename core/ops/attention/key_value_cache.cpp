#include "core/ops/attention/key_value_cache.h"

#include <cstring>

#include "core/cuda/runtime.h"
#include "core/ops/check.h"
#include "core/run_op.h"

namespace ottava {
namespace {

constexpr std::string_view kOp = "store_key_values";

void check(const StoreKeyValues& a) {
  check_float(kOp, "qkv", a.qkv);
  check_tensor(kOp, "qkv", a.qkv, a.qkv.dtype, {a.batch * a.sequence, a.heads.row()});
  if (!a.q.empty())
    check_tensor(kOp, "q", a.q, a.qkv.dtype, {a.batch * a.sequence, a.heads.heads * a.heads.head_dim});
  if (a.keys.shape.rank() != 3)
    fail<ShapeError>(kOp, "keys is {}, expected [B, capacity, H_kv*D]", describe(a.keys));
  const int64_t capacity = a.keys.shape[1];
  check_tensor(kOp, "keys", a.keys, a.qkv.dtype, {a.batch, capacity, a.heads.kv_heads * a.heads.head_dim});
  check_like(kOp, "values", a.values, "keys", a.keys);
  if (a.position < 0 || a.position + a.sequence > capacity) {
    fail<ShapeError>(kOp, "positions [{}, {}) do not fit a cache of {}", a.position, a.position + a.sequence,
                     capacity);
  }
}

}  // namespace

void store_key_values(Stream& stream, const StoreKeyValues& a) {
  check(a);
  if (stream.type() == DeviceType::meta) return stream.recorder().record(moving(kOp, 2 * a.qkv.bytes()));
  // Rows of a few KiB, once per generated token: copies, not a kernel, on the GPU as well.
  auto copy = [&](char* to, const char* from, int64_t elements) {
    const int64_t bytes = elements * size_of(a.qkv.dtype);
    if (stream.type() == DeviceType::cuda) {
      cuda::copy(to, from, bytes, stream.native());
    } else {
      std::memcpy(to, from, bytes);
    }
  };
  const int64_t row = a.heads.row(), q = a.heads.heads * a.heads.head_dim,
                kv = a.heads.kv_heads * a.heads.head_dim;
  const int64_t capacity = a.keys.shape[1];
  for (int64_t n = 0; n < a.batch * a.sequence; ++n) {
    const int64_t slot = (n / a.sequence * capacity + a.position + n % a.sequence) * kv;
    if (!a.q.empty()) copy(a.q.at(n * q), a.qkv.at(n * row), q);
    copy(a.keys.at(slot), a.qkv.at(n * row + q), kv);
    copy(a.values.at(slot), a.qkv.at(n * row + q + kv), kv);
  }
}

}  // namespace ottava
