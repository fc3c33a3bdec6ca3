#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/device.h"
#include "core/memory/plan.h"

namespace ottava {

/// "the step needs 12.00 GiB on cpu, but only 8.00 GiB are free for this rank; largest items: w 4.00 GiB,
/// ...".
std::string too_large_text(std::string_view what, const MemoryPlan& plan, Device device, int64_t available);

/// Refuses a model that this process, the only rank, is to run and that does not fit on the device: throws
/// MemoryError. It says what to do: advice_on_weights() if the weights alone do not fit, else what `advice`
/// says for so many bytes that are available.
void require_memory_for_model(std::string_view what, const MemoryPlan& plan, Device device,
                              const std::function<std::string(int64_t available)>& advice);
/// What to do about weights that do not fit into so many bytes: another --dtype only where that is enough for
/// them.
std::string advice_on_weights(const MemoryPlan& plan, int64_t available);
/// Bytes of the weights, in every form in which they stay.
int64_t weight_bytes(const MemoryPlan& plan);

}  // namespace ottava
