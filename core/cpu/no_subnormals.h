#pragma once

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace ottava::cpu {

/// While it lives, this thread's arithmetic takes subnormal numbers for zero and makes none, on x86. There an
/// instruction that meets one can take 150 cycles. Other processors treat them at the usual speed.
class NoSubnormals {
 public:
#if defined(__SSE__)
  NoSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushResults | kFlushOperands); }
  ~NoSubnormals() { _mm_setcsr(before_); }
#else
  NoSubnormals() = default;
  ~NoSubnormals() {}
#endif
  NoSubnormals(const NoSubnormals&) = delete;

 private:
#if defined(__SSE__)
  static constexpr unsigned kFlushResults = 0x8000, kFlushOperands = 0x0040;
  unsigned before_;
#endif
};

}  // namespace ottava::cpu
