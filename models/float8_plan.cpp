#include "models/float8_plan.h"

namespace ottava {

using fp8::AmaxSource;
using fp8::RowGather;

Float8Plan float8_plan(const fp8::Recipe& recipe, const Float8Layout& layout) {
  const fp8::GranularityTraits &x = fp8::traits(recipe.forward.a.granularity),
                               &dy = fp8::traits(recipe.input_gradient.a.granularity);
  auto operand = [&](const fp8::GranularityTraits& t, LinearStyle gathered_in, bool can_travel) {
    Float8Plan::Operand out;
    if (layout.tensor_parallel > 1 && layout.style == gathered_in)
      out.travel = layout.travels_in_codes && !layout.is_part && can_travel ? Travel::codes : Travel::values;
    const bool is_what_is_written = !layout.is_part && out.travel != Travel::values;
    out.takes_amax = is_what_is_written && t.amax == AmaxSource::given;
    out.has_history = is_what_is_written && recipe.has_history() && out.travel == Travel::stays;
    out.takes_codes = is_what_is_written && (t.is_row_local || out.has_history);
    return out;
  };
  const bool weight_gradient_is_fp8 = recipe.weight_gradient.is_fp8;
  // Codes of dy serve both of its products only where these share a scale and both are FP8.
  Float8Plan plan{.x = operand(x, LinearStyle::column, x.row_gather != RowGather::none),
                  .dy = operand(dy, LinearStyle::row,
                                dy.row_gather == RowGather::common_scale && weight_gradient_is_fp8)};
  plan.keeps_codes =
      weight_gradient_is_fp8 && (plan.x.travel == Travel::stays || x.row_gather == RowGather::common_scale);
  return plan;
}

}  // namespace ottava
