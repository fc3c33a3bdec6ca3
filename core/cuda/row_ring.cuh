#pragma once

#include "core/cuda/elements.cuh"

namespace ottava::cuda {

/// Rows of kOperands tensors on their way into shared memory while the rows before them are worked on: kRows
/// slots, one of which holds the current row. A team of kTeam threads of a block of kBlock has a row at a
/// time, a thread its packs member, member + kTeam, ..., at most kPacks of them, which are all of the row. A
/// thread reads only what it has copied itself, so no barrier stands between the two. With a row comes its
/// number of `of_rows`: a register loaded for the next row would have to arrive before the loop turns, and
/// behind the copies that were just started.
template <class T, int kSize, int kBlock, int kTeam, int kPacks, int kOperands, int kRows>
class RowRing {
 public:
  using P = Pack<T, kSize>;
  static_assert(sizeof(P) == 16);
  static constexpr int kPacksBytes = kRows * kOperands * kPacks * kBlock * 16;
  static constexpr int kBytes = kPacksBytes + kRows * kBlock / 32 * 4;  ///< of dynamic shared memory

  /// Starts the first rows of the team: `row`, row + step, ...
  __device__ __forceinline__ RowRing(const T* const (&operands)[kOperands], const float* of_rows, int64_t row,
                                     int64_t step, int64_t rows, int64_t packs)
      : mine_(dynamic_shared<P>() + threadIdx.x),
        of_warp_(dynamic_shared<float>() + kPacksBytes / 4 + threadIdx.x / 32),
        of_rows_(of_rows),
        ahead_(row),
        step_(step),
        rows_(rows),
        packs_(packs),
        member_(threadIdx.x % kTeam) {
#pragma unroll
    for (int i = 0; i < kOperands; ++i) next_[i] = operands[i] + (row * packs + member_) * kSize;
#pragma unroll
    for (int turn = 0; turn < kRows - 1; ++turn) start(turn);
  }
  /// Starts one more row in the slot of the row before the current one, and waits for the current row.
  __device__ __forceinline__ void wait() {
    start(free_);
    cp_async_wait<kRows - 1>();
  }
  /// The thread's k-th pack of the current row.
  __device__ __forceinline__ P pack(int operand, int k) const { return *slot(turn_, operand, k); }
  /// The current row's number; of no meaning past the last row. Every thread of the warp calls it.
  __device__ __forceinline__ float of_row() const {
    const float own = threadIdx.x % 32 == 0 ? of_warp_[turn_ * (kBlock / 32)] : 0;
    return __shfl_sync(kAllLanes, own, 0);
  }
  /// The next row becomes the current one.
  __device__ __forceinline__ void advance() {
    free_ = turn_;
    if (++turn_ == kRows) turn_ = 0;
  }

 private:
  __device__ __forceinline__ P* slot(int turn, int operand, int k) const {
    return mine_ + ((turn * kOperands + operand) * kPacks + k) * kBlock;
  }
  __device__ __forceinline__ void start(int turn) {
    if (ahead_ < rows_) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        if (member_ + k * kTeam >= packs_) continue;
#pragma unroll
        for (int i = 0; i < kOperands; ++i) {
          cp_async_16(slot(turn, i, k), next_[i] + k * kTeam * kSize, true);
        }
      }
      if (threadIdx.x % 32 == 0) cp_async_4(of_warp_ + turn * (kBlock / 32), of_rows_ + ahead_, true);
#pragma unroll
      for (int i = 0; i < kOperands; ++i) next_[i] += step_ * packs_ * kSize;
    }
    cp_async_commit();
    ahead_ += step_;
  }

  P* mine_;
  float* of_warp_;
  const float* of_rows_;
  const T* next_[kOperands];
  int64_t ahead_, step_, rows_, packs_;
  int member_, turn_ = 0, free_ = kRows - 1;
};

}  // namespace ottava::cuda
