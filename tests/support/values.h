#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string_view>
#include <vector>

#include "core/bf16.h"
#include "core/dtype.h"
#include "core/tensor.h"
#include "core/threads/parallel_for.h"

namespace ottava::test {

/// n normal values of the given standard deviation, the same for the same seed on any machine of one standard
/// library, rounded to `dtype` so that the reference sees exactly what the operation sees.
inline std::vector<float> normal_values(int64_t n, uint64_t seed, DType dtype = DType::f32,
                                        float deviation = 1) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& x : values) {
    x = normal(generator);
    if (dtype == DType::bf16) x = static_cast<float>(bf16(x));
  }
  return values;
}

/// The largest |value| as f32 bits, the form in which operations report an amax.
inline uint32_t largest_bits(const std::vector<float>& values) {
  uint32_t largest = 0;
  for (float x : values) largest = std::max(largest, std::bit_cast<uint32_t>(x) & 0x7fffffffu);
  return largest;
}

inline std::vector<float> as_float(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}
inline std::vector<double> as_double(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// A tensor without data, for the meta device and for checks that refuse before anything is read.
inline Tensor shape_only(DType dtype, Shape shape) { return {nullptr, dtype, shape}; }

/// Calls body(threads) with 1, 2, 3 and 7 threads: more than the machine may have, which changes nothing but
/// the partition. Once where loops are serial; twice where only device cuda runs, which has no such threads.
template <class Body>
void for_each_thread_count(Body&& body) {
  const int before = parallel_threads();
#if defined(OTTAVA_SERIAL)
  std::vector<int> counts = {1};
#else
  std::vector<int> counts = {1, 2, 3, 7};
#endif
  const char* devices = std::getenv("OTTAVA_TEST_DEVICES");
  if (devices && std::string_view(devices) == "cuda" && counts.size() > 2) counts.resize(2);
  for (int threads : counts) {
    set_parallel_threads(threads);
    body(threads);
  }
  set_parallel_threads(before);
}

}  // namespace ottava::test
