#pragma once

#include <functional>
#include <string>

#include "core/cuda/gpu.h"
#include "tests/support/cuda_host/settings.h"
#include "tests/support/devices.h"

namespace ottava::test {

/// The message of the failure of the work that body() enqueues; empty when it does not fail.
inline std::string failure_of(Stream& stream, const std::function<void()>& body) {
  try {
    body();
    stream.synchronize();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Runs body under every order of threads, some random ones among them.
template <class F>
void for_each_order(F&& body) {
  using cuda_host::Order;
  auto& settings = cuda_host::settings();
  const auto before = settings;
  for (Order order : {Order::forward, Order::reverse, Order::random, Order::random, Order::random}) {
    settings.order = order;
    body();
  }
  settings = before;
}

/// Runs body with every way in which work of streams may run, random ones twice.
template <class F>
void for_each_policy(F&& body) {
  using cuda_host::Streams;
  auto& settings = cuda_host::settings();
  const auto before = settings;
  for (Streams policy : {Streams::eager, Streams::lazy, Streams::random, Streams::random}) {
    settings.streams = policy;
    body();
  }
  settings = before;
}

inline __global__ void affine(float* x, float factor, float offset) {
  x[threadIdx.x] = x[threadIdx.x] * factor + offset;
}

template <class T>
T* device_pointer(const DeviceBuffer& buffer) {
  return buffer.tensor().as<T>();
}

}  // namespace ottava::test
