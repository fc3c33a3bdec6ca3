#pragma once

#include <type_traits>

#include "core/cost.h"
#include "core/stream.h"

namespace ottava {

/// The cost of an operation that only moves `bytes` bytes.
inline OpCost moving(std::string_view op, int64_t bytes) {
  return {.op = op, .bytes = static_cast<double>(bytes)};
}

namespace recorded {
/// Calls run with those of (stream, args...) that it takes: all, only args..., or nothing.
template <class Run, class... Args>
void carry_out(const Run& run, Stream& stream, const Args&... args) {
  if constexpr (std::is_invocable_v<const Run&, Stream&, const Args&...>) {
    run(stream, args...);
  } else if constexpr (std::is_invocable_v<const Run&, const Args&...>) {
    run(args...);
  } else {
    run();
  }
}
}  // namespace recorded

/// Runs work where its stream is: on_cpu at once, on_cuda enqueued, on_meta() on `meta`. The first two are
/// called with (stream, args...), (args...) or nothing, whichever they take.
template <class OnCpu, class OnCuda, class OnMeta, class... Args>
void run_where(Stream& stream, const OnCpu& on_cpu, const OnCuda& on_cuda, const OnMeta& on_meta,
               const Args&... args) {
  switch (stream.type()) {
    case DeviceType::cpu:
      return recorded::carry_out(on_cpu, stream, args...);
    case DeviceType::cuda:
      return recorded::carry_out(on_cuda, stream, args...);
    case DeviceType::meta:
      return on_meta();
  }
}

/// run_where() for an operation: where the stream records, so are the cost and the call op(stream, args...).
template <class OnCpu, class OnCuda, class... Parameters>
void run_op(Stream& stream, const OpCost& cost, void (*op)(Stream&, Parameters...), const OnCpu& on_cpu,
            const OnCuda& on_cuda, const std::decay_t<Parameters>&... args) {
  if (stream.records()) stream.recorder().record(cost, op, args...);
  const Stream::Unrecorded inner(stream);
  run_where(
      stream, on_cpu, on_cuda, [] {}, args...);
}

}  // namespace ottava
