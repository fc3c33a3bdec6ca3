#include "core/dtype.h"

#include <array>
#include <utility>

namespace ottava {
namespace {

struct Row {
  DType dtype;
  std::string_view name, long_name;
  size_t bytes;
};
constexpr std::array<Row, 12> kRows = {{{DType::f32, "f32", "float32", 4},
                                        {DType::bf16, "bf16", "bfloat16", 2},
                                        {DType::f16, "f16", "float16", 2},
                                        {DType::e4m3, "e4m3", "float8_e4m3fn", 1},
                                        {DType::e5m2, "e5m2", "float8_e5m2", 1},
                                        {DType::e8m0, "e8m0", "float8_e8m0fnu", 1},
                                        {DType::u8, "u8", "uint8", 1},
                                        {DType::u16, "u16", "uint16", 2},
                                        {DType::i32, "i32", "int32", 4},
                                        {DType::u32, "u32", "uint32", 4},
                                        {DType::i64, "i64", "int64", 8},
                                        {DType::f64, "f64", "float64", 8}}};

const Row& row_of(DType dtype) { return kRows[static_cast<size_t>(dtype)]; }

}  // namespace

int64_t size_of(DType dtype) { return row_of(dtype).bytes; }

std::string_view name_of(DType dtype) { return row_of(dtype).name; }

DType parse_dtype(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name || row.long_name == name) return row.dtype;
  }
  fail<ConfigError>("dtype", "unknown dtype '{}': expected float32, bfloat16 or float16", name);
}

}  // namespace ottava
