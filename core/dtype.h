#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/bf16.h"
#include "core/error.h"

namespace ottava {

/// Storage types. `e4m3` and `e5m2` are the OCP 8-bit floats (arXiv:2209.05433), `e8m0` the MX scale byte
/// 2^(e-127).
enum class DType : uint8_t { f32, bf16, f16, e4m3, e5m2, e8m0, u8, u16, i32, u32, i64, f64 };

/// Bytes of one element.
int64_t size_of(DType dtype);
/// "f32", "bf16", ...; the names that errors and plans use.
std::string_view name_of(DType dtype);

/// Maps C++ element types to DType. One-byte floats have no C++ type; their owners handle them as uint8_t.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<uint32_t> {
  static constexpr DType value = DType::u32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<uint16_t> {
  static constexpr DType value = DType::u16;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::u8;
};

/// Calls f.operator()<T>() with T = float or bf16. Throws ShapeError naming `where` for any other dtype.
template <class F>
decltype(auto) dispatch_float(DType dtype, std::string_view where, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f.template operator()<float>();
    case DType::bf16:
      return f.template operator()<bf16>();
    default:
      fail<ShapeError>(where, "dtype is {}, expected f32 or bf16", name_of(dtype));
  }
}

}  // namespace ottava
