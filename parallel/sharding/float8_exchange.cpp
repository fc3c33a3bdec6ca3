#include "parallel/sharding/float8_exchange.h"

#include "core/ops/elementwise.h"

namespace ottava {

bool Float8Exchange::takes(const ParameterSpec& spec, const Shape& slice, int shards) {
  return spec.role == ParameterRole::linear && slice[0] % (shards * spec.shard_alignment) == 0 &&
         slice.numel() % (kRow * shards) == 0;
}

Float8Exchange::Float8Exchange(Stream& stream, Arena& arena, const std::string& name, const Tensor& gradient,
                               int shards, const Tensor& non_finite)
    : shards_(shards) {
  const Shape matrix{gradient.numel() / kRow, kRow};
  auto allocate = [&](const char* what, DType dtype, Shape shape) {
    return arena.allocate(name + what, dtype, shape, MemoryCategory::unsharded);
  };
  codes_ = allocate(".fp8 gradient", DType::e4m3, matrix);
  scales_ = allocate(".fp8 gradient scales", DType::f32, {matrix[0]});
  received_codes_ = allocate(".fp8 chunks", DType::e4m3, matrix);
  received_scales_ = allocate(".fp8 chunk scales", DType::f32, {matrix[0]});
  fp8::quantize(stream, {.x = gradient.reshape(matrix),
                         .granularity = fp8::Granularity::row,
                         .rounding = fp8::ScaleRounding::down_to_power_of_two,
                         .out = {codes_, scales_},
                         .non_finite = non_finite});
}

void Float8Exchange::start(Stream& stream, Communicator& shards, const std::string& label) const {
  shards.all_to_all(stream, {.send = codes_, .recv = received_codes_, .label = label});
  shards.all_to_all(stream, {.send = scales_, .recv = received_scales_, .label = label});
}

void Float8Exchange::finish(Stream& stream, Arena& arena, const Tensor& shard, bool accumulate) const {
  const int64_t rows = received_codes_.tensor().rows() / shards_;
  const Tensor sum = shard.reshape({rows, kRow});
  Allocation addend = arena.allocate("fp8 addend", DType::f32, sum.shape, MemoryCategory::scratch);
  for (int r = 0; r < shards_; ++r) {
    const fp8::Float8Codes chunk{received_codes_.tensor().slice(r * rows, (r + 1) * rows),
                                 received_scales_.tensor().slice(r * rows, (r + 1) * rows)};
    const bool first = r == 0 && !accumulate;
    fp8::dequantize(stream, chunk, fp8::Granularity::row, first ? sum : addend.tensor());
    if (!first) add(stream, sum, addend, sum);
  }
}

}  // namespace ottava
