#include "core/beside_compute.h"

namespace ottava {

std::vector<bool> beside_compute(const RecordedOrder& order) {
  std::vector<bool> out(order.transfers.size()), is_waited_for(order.transfers.size());
  std::vector<int64_t> operations_at_issue(order.transfers.size());
  int64_t operations = 0;
  for (const RecordedEvent& event : order.events) {
    const size_t index = event.index;
    if (event.kind == RecordedEvent::Kind::operation) {
      ++operations;
    } else if (event.kind == RecordedEvent::Kind::issue) {
      operations_at_issue[index] = operations;
    } else if (!is_waited_for[index]) {
      is_waited_for[index] = true;
      out[index] = operations > operations_at_issue[index];
    }
  }
  return out;
}

int64_t sent_beside_compute(const RecordedOrder& order, std::string_view axis) {
  const std::vector<bool> is_beside = beside_compute(order);
  int64_t bytes = 0;
  for (size_t i = 0; i < is_beside.size(); ++i)
    if (is_beside[i] && order.transfers[i].axis == axis) bytes += order.transfers[i].sent_bytes();
  return bytes;
}

}  // namespace ottava
