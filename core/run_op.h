#pragma once

#include "core/cost.h"
#include "core/stream.h"

namespace ottava {

/// Runs an operation where its stream is: on_cpu(args...) at once, on_cuda(stream, args...) enqueued; on
/// `meta` the cost and the call op(stream, args...) are recorded.
template <class OnCpu, class OnCuda, class... Parameters>
void run_op(Stream& stream, const OpCost& cost, void (*op)(Stream&, Parameters...), OnCpu on_cpu,
            OnCuda on_cuda, const std::decay_t<Parameters>&... args) {
  switch (stream.type()) {
    case DeviceType::cpu:
      return on_cpu(args...);
    case DeviceType::cuda:
      return on_cuda(stream, args...);
    case DeviceType::meta:
      return stream.recorder().record(cost, op, args...);
  }
}

}  // namespace ottava
