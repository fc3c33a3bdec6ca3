#pragma once

#include <functional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// A call of an operation, to be made again on other memory.
struct RecordedCall {
  /// Those of the arguments, in the order of their fields, without those that were left out.
  std::vector<Tensor> tensors;
  /// The call on other memory: takes as many tensors, of the same dtypes and shapes, in place of its own.
  std::function<std::function<void(Stream&)>(std::span<const Tensor>)> on;
};

namespace recorded {

struct AnyField {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor): stands for whatever a field is
};

template <class T, class... Fields>
constexpr size_t field_count() {
  if constexpr (requires { T{Fields{}..., AnyField{}}; }) {
    return field_count<T, Fields..., AnyField>();
  } else {
    return sizeof...(Fields);
  }
}

template <class T>
auto fields_of(T& t) {
  constexpr size_t n = field_count<std::remove_const_t<T>>();
  static_assert(n <= 12, "name the fields of a larger struct here");
  // clang-format off
  if constexpr (n == 1) { auto& [a] = t; return std::tie(a); }
  else if constexpr (n == 2) { auto& [a, b] = t; return std::tie(a, b); }
  else if constexpr (n == 3) { auto& [a, b, c] = t; return std::tie(a, b, c); }
  else if constexpr (n == 4) { auto& [a, b, c, d] = t; return std::tie(a, b, c, d); }
  else if constexpr (n == 5) { auto& [a, b, c, d, e] = t; return std::tie(a, b, c, d, e); }
  else if constexpr (n == 6) { auto& [a, b, c, d, e, f] = t; return std::tie(a, b, c, d, e, f); }
  else if constexpr (n == 7) { auto& [a, b, c, d, e, f, g] = t; return std::tie(a, b, c, d, e, f, g); }
  else if constexpr (n == 8) { auto& [a, b, c, d, e, f, g, h] = t; return std::tie(a, b, c, d, e, f, g, h); }
  else if constexpr (n == 9) { auto& [a, b, c, d, e, f, g, h, i] = t; return std::tie(a, b, c, d, e, f, g, h, i); }
  else if constexpr (n == 10) { auto& [a, b, c, d, e, f, g, h, i, j] = t; return std::tie(a, b, c, d, e, f, g, h, i, j); }
  else if constexpr (n == 11) { auto& [a, b, c, d, e, f, g, h, i, j, k] = t; return std::tie(a, b, c, d, e, f, g, h, i, j, k); }
  else { auto& [a, b, c, d, e, f, g, h, i, j, k, l] = t; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l); }
  // clang-format on
}

template <class T>
inline constexpr bool is_vector = false;
template <class T>
inline constexpr bool is_vector<std::vector<T>> = true;

/// Calls visit(tensor) in order for each tensor in a Tensor, a vector or a plain struct of these; those left
/// out are skipped.
template <class T, class Visit>
void each_tensor(T& value, const Visit& visit) {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Plain, Tensor>) {
    if (!value.empty()) visit(value);
  } else if constexpr (is_vector<Plain>) {
    for (auto& element : value) each_tensor(element, visit);
  } else if constexpr (std::is_aggregate_v<Plain> && std::is_class_v<Plain> && !std::is_empty_v<Plain>) {
    std::apply([&](auto&... fields) { (each_tensor(fields, visit), ...); }, fields_of(value));
  }
}

/// "bf16 [2048, 256] f32 [2048]".
template <class... Args>
std::string operands_text(const Args&... args) {
  std::string text;
  auto append = [&](const Tensor& t) { text += (text.empty() ? "" : " ") + describe(t); };
  (each_tensor(args, append), ...);
  return text;
}

template <class... Parameters>
RecordedCall make_call(void (*op)(Stream&, Parameters...), const std::decay_t<Parameters>&... args) {
  RecordedCall call;
  (each_tensor(args, [&](const Tensor& t) { call.tensors.push_back(t); }), ...);
  call.on = [op, args = std::make_tuple(args...)](std::span<const Tensor> tensors) {
    auto mine = args;
    auto next = tensors.begin();
    std::apply([&](auto&... arg) { (each_tensor(arg, [&](Tensor& t) { t = *next++; }), ...); }, mine);
    return [op, mine = std::move(mine)](Stream& stream) {
      std::apply([&](const auto&... arg) { op(stream, arg...); }, mine);
    };
  };
  return call;
}

}  // namespace recorded
}  // namespace ottava
