#pragma once

#include "apps/report_page/run_history.h"
#include "core/io/json.h"

namespace ottava {

/// What became of FP8 operands over a run, one byte per cell. Rows are role (x, w, dy) by layer in the
/// model's order; columns are at most 400 buckets of steps, each with its worst value. {"steps": [...],
/// "rows": [[layer, role], ...], "underflow", "saturation", "drift": base64 of rows x columns, "alert":
/// {...}}. Fractions f: 0 is none, 1 to 254 are log10 f from -6 to 0; drift: 127 + 8 log2(scale / the first
/// scale), from 0 to 254; 255: not logged. Null without FP8.
Json float8_map(const RunHistory& run);

}  // namespace ottava
