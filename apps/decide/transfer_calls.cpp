#include "apps/decide/transfer_calls.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace ottava {
namespace {

constexpr std::string_view kLabel = "a measurement";

std::function<Request(Stream&)> prepare(const RecordedTransfer::Call& call, Communicator& ranks, int distance,
                                        Workbench& bench) {
  const int64_t elements = std::max<int64_t>(call.payload_bytes / 4, 1), size = ranks.size();
  const int64_t block = std::max<int64_t>(elements / size, 1);
  auto tensor = [&](int64_t count) { return bench.tensor(DType::f32, {count}); };
  if (call.collective == "send" || call.collective == "recv") {
    const Tensor x = tensor(elements);
    const int to = (ranks.rank() + distance) % ranks.size(),
              from = (ranks.rank() - distance + ranks.size()) % ranks.size();
    if (call.collective == "send")
      return [&ranks, x, to](Stream& s) { return ranks.send(s, {.tensor = x, .to = to, .label = kLabel}); };
    return
        [&ranks, x, from](Stream& s) { return ranks.recv(s, {.tensor = x, .from = from, .label = kLabel}); };
  }
  if (call.collective == "all_reduce") {
    const Tensor x = tensor(elements);
    return [&ranks, x](Stream& s) {
      return ranks.all_reduce(s, {.send = x, .op = ReduceOp::max, .label = kLabel});
    };
  }
  const Tensor whole = tensor(block * size);
  if (call.collective == "all_to_all") {
    const Tensor other = tensor(block * size);
    return [&ranks, whole, other](Stream& s) {
      return ranks.all_to_all(s, {.send = whole, .recv = other, .label = kLabel});
    };
  }
  const Tensor part = tensor(block);
  if (call.collective == "all_gather")
    return [&ranks, whole, part](Stream& s) {
      return ranks.all_gather(s, {.send = part, .recv = whole, .label = kLabel});
    };
  return [&ranks, whole, part](Stream& s) {
    return ranks.reduce_scatter(s, {.send = whole, .recv = part, .label = kLabel});
  };
}

}  // namespace

std::function<Request(Stream&)> prepare(const RecordedTransfer& transfer, Communicator& ranks, int distance,
                                        Workbench& bench) {
  std::vector<std::function<Request(Stream&)>> calls;
  for (const RecordedTransfer::Call& call : transfer.calls)
    calls.push_back(prepare(call, ranks, distance, bench));
  if (calls.size() == 1) return calls[0];
  return [&ranks, calls = std::move(calls)](Stream& stream) {
    Group group(ranks);
    for (const auto& start : calls) start(stream);
    return group.end();
  };
}

}  // namespace ottava
