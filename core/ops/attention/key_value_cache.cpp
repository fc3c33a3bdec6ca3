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
  auto copy = [&](char* to, const char* from, int64_t bytes) {
    if (stream.type() == DeviceType::cuda) {
      cuda::copy(to, from, static_cast<size_t>(bytes), stream.native());
    } else {
      std::memcpy(to, from, static_cast<size_t>(bytes));
    }
  };
  const auto element = static_cast<int64_t>(size_of(a.qkv.dtype));
  const int64_t row = a.heads.row() * element, q = a.heads.heads * a.heads.head_dim * element,
                kv = a.heads.kv_heads * a.heads.head_dim * element;
  const int64_t capacity = a.keys.shape[1];
  for (int64_t n = 0; n < a.batch * a.sequence; ++n) {
    const char* from = static_cast<const char*>(a.qkv.data) + n * row;
    const int64_t slot = (n / a.sequence * capacity + a.position + n % a.sequence) * kv;
    if (!a.q.empty()) copy(static_cast<char*>(a.q.data) + n * q, from, q);
    copy(static_cast<char*>(a.keys.data) + slot, from + q, kv);
    copy(static_cast<char*>(a.values.data) + slot, from + q + kv, kv);
  }
}

}  // namespace ottava
