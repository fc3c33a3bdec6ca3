#pragma once

#include <string>

#include "core/memory/arena.h"
#include "fp8/quantize.h"
#include "parallel/comm/communicator.h"
#include "parallel/sharding/parameter_spec.h"

namespace ottava {

/// Reduce-scatter of an f32 gradient as FP8: an all-to-all of E4M3 codes, in which each 128 elements have a
/// scale of their own (a power of two). The rank that keeps a chunk sums it in f32, in rank order. This sends
/// a quarter of f32's bytes and rounds each addend once; a reduce-scatter of FP8 sums would round at every
/// hop.
class Float8Exchange {
 public:
  /// True for matrices of linear layers that split evenly into whole rows of 128; everything else is reduced
  /// in the reduce type.
  static bool takes(const ParameterSpec& spec, const Shape& slice, int shards);

  Float8Exchange() = default;
  /// Quantizes the gradient. Raises `non_finite`, u32 [1], for infinities and NaN, which FP8 would hide.
  Float8Exchange(Stream& stream, Arena& arena, const std::string& name, const Tensor& gradient, int shards,
                 const Tensor& non_finite);

  /// Starts two calls: one for codes, one for scales.
  void start(Stream& stream, Communicator& shards, const std::string& label) const;
  /// Once both calls have been waited for: shard (f32) = the sum, or += it.
  void finish(Stream& stream, Arena& arena, const Tensor& shard, bool accumulate) const;

  explicit operator bool() const { return static_cast<bool>(codes_); }

 private:
  static constexpr int64_t kRow = 128;
  int shards_ = 1;
  Allocation codes_, scales_, received_codes_, received_scales_;
};

}  // namespace ottava
