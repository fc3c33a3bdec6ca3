#pragma once

#include <fmt/core.h>

#include <new>
#include <stdexcept>
#include <vector>

#include "core/cuda/runtime.h"
#include "parallel/comm/communicator.h"

namespace ottava::conformance {

/// Fails the case from any thread or process (Catch's assertions belong to one thread).
template <class... A>
void expect(bool holds, fmt::format_string<A...> format, A&&... args) {
  if (!holds) throw std::runtime_error(fmt::format(format, std::forward<A>(args)...));
}

/// Calls body and checks that it throws E with a message that contains `text`.
template <class E, class Body>
void expect_error(std::string_view text, Body body) {
  try {
    body();
  } catch (const E& error) {
    expect(std::string_view(error.what()).find(text) != std::string_view::npos, "expected '{}' in: {}", text,
           error.what());
    return;
  }
  expect(false, "nothing was thrown, expected: {}", text);
}

/// Host memory that a GPU, where there is one, reaches too: so the same cases run on every transport.
template <class T>
struct DeviceVisible {
  using value_type = T;
  DeviceVisible() = default;
  template <class U>
  DeviceVisible(const DeviceVisible<U>&) {}
  T* allocate(size_t count) {
    if (cuda::device_count() > 0) return static_cast<T*>(cuda::allocate_pinned(count * sizeof(T)));
    return static_cast<T*>(::operator new(count * sizeof(T)));
  }
  void deallocate(T* data, size_t) noexcept {
    if (cuda::device_count() > 0) return cuda::release_pinned(data);
    ::operator delete(data);
  }
  bool operator==(const DeviceVisible&) const = default;
};
template <class T>
using Values = std::vector<T, DeviceVisible<T>>;

/// Under NCCL every rank has the GPU of its number.
inline Stream stream_for(const Communicator& world) {
  return world.transport() == "nccl" ? Stream::cuda(world.world_ranks()[static_cast<size_t>(world.rank())])
                                     : Stream::cpu();
}
/// Waits until the host sees the results.
inline void finish(const Request& request, Stream& stream) {
  request.wait(stream);
  stream.synchronize();
}

/// One body that every rank of a world runs.
struct Case {
  const char* name;
  void (*run)(Communicator& world);
};
/// Arguments, errors, groups, counters: every implementation, dry_run included.
const std::vector<Case>& contract_cases();
/// Results: every implementation that moves data.
const std::vector<Case>& data_cases();

}  // namespace ottava::conformance
