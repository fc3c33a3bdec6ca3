#include "core/dtype.h"

#include <array>

namespace ottava {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  size_t bytes;
};
constexpr std::array<Row, 12> kRows = {{{DType::f32, "f32", 4},
                                        {DType::bf16, "bf16", 2},
                                        {DType::f16, "f16", 2},
                                        {DType::e4m3, "e4m3", 1},
                                        {DType::e5m2, "e5m2", 1},
                                        {DType::e8m0, "e8m0", 1},
                                        {DType::u8, "u8", 1},
                                        {DType::u16, "u16", 2},
                                        {DType::i32, "i32", 4},
                                        {DType::u32, "u32", 4},
                                        {DType::i64, "i64", 8},
                                        {DType::f64, "f64", 8}}};

const Row& row_of(DType dtype) { return kRows[static_cast<size_t>(dtype)]; }

}  // namespace

int64_t size_of(DType dtype) { return row_of(dtype).bytes; }

std::string_view name_of(DType dtype) { return row_of(dtype).name; }

}  // namespace ottava
