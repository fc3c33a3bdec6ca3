#include "fp8/quantize_operand.h"

#include "core/ops/elementwise.h"

namespace ottava::fp8 {

bool takes_column_amax(const Float8Tensor& out) {
  return traits(out.granularity).needs_column_amax && !out.columnwise.empty();
}

void quantize_operand(Stream& stream, const QuantizeOperand& a) {
  const bool amax_is_given = traits(a.out.granularity).amax == AmaxSource::given;
  Quantize q{.x = a.x,
             .x_columns = a.x_columns,
             .granularity = a.out.granularity,
             .rounding = a.rounding,
             .out = a.out.rowwise,
             .transposed = a.out.columnwise,
             .counters = a.slots.counters,
             .non_finite = a.slots.non_finite};
  if (amax_is_given) {
    if (a.measured == Measured::nothing) amax(stream, a.x, a.slots.amax, a.x_columns);
    q.amax = a.slots.scale_amax;
  } else if (!a.slots.counters.empty()) {
    q.largest = a.slots.amax;
  }
  if (takes_column_amax(a.out)) {
    if (a.measured != Measured::all) {
      fill_zero(stream, a.column_amax);
      column_amax(stream, a.x, a.column_amax, a.x_columns);
    }
    q.column_amax = a.column_amax;
  }
  quantize(stream, q);
}

}  // namespace ottava::fp8
