#include "core/ops/attention/key_value_cache.h"

#include "core/check.h"
#include "core/ops/elementwise.h"
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
  const int64_t q = a.heads.heads * a.heads.head_dim, kv = a.heads.kv_heads * a.heads.head_dim;
  if (!a.q.empty()) copy_columns(stream, a.qkv, {0, q}, a.q, 0);
  auto store = [&](const Tensor& cache, ColumnRange columns) {
    const int64_t capacity = cache.shape[1];
    if (a.sequence == 1)  // a generated token: those of all texts at once
      return copy_columns(stream, a.qkv, columns, cache.reshape({a.batch, capacity * kv}), a.position * kv);
    for (int64_t b = 0; b < a.batch; ++b) {
      const Tensor rows = cache.reshape({a.batch * capacity, kv})
                              .slice(b * capacity + a.position, b * capacity + a.position + a.sequence);
      copy_columns(stream, a.qkv.slice(b * a.sequence, (b + 1) * a.sequence), columns, rows, 0);
    }
  };
  store(a.keys, {q, q + kv});
  store(a.values, {q + kv, q + 2 * kv});
}

}  // namespace ottava
