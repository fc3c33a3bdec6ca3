#include "parallel/comm/host_staging.h"

#include "core/cuda/runtime.h"
#include "core/round_up.h"

namespace ottava {
namespace {

size_t padded(int64_t bytes) { return round_up(bytes, 64); }

bool one_tensor(const CollectiveCall& call) {
  return call.kind == Collective::send || call.kind == Collective::recv;
}

}  // namespace

std::vector<CollectiveCall> HostStaging::to_host(std::span<const CollectiveCall> calls) {
  size_t need = 0;
  for (const CollectiveCall& call : calls) need += padded(call.send.bytes()) + padded(call.recv.bytes());
  if (need > pinned_.bytes()) {
    pinned_ = {};
    pinned_ = Buffer::pinned(stream_.device(), need);
  }
  std::vector<CollectiveCall> staged(calls.begin(), calls.end());
  char* next = static_cast<char*>(pinned_.data());
  for (CollectiveCall& call : staged) {
    if (call.kind == Collective::barrier) continue;
    if (call.kind != Collective::recv && call.send.bytes() > 0) {
      cuda::copy(next, call.send.data, call.send.bytes(), stream_.native());
    }
    call.send.data = next;
    next += padded(call.send.bytes());
    if (one_tensor(call)) {
      call.recv.data = call.send.data;
    } else {
      call.recv.data = next;
      next += padded(call.recv.bytes());
    }
  }
  stream_.synchronize();
  return staged;
}

void HostStaging::to_device(std::span<const CollectiveCall> staged, std::span<const CollectiveCall> calls) {
  for (size_t i = 0; i < calls.size(); ++i) {
    Collective kind = calls[i].kind;
    if (kind == Collective::send || kind == Collective::barrier || calls[i].recv.bytes() == 0) continue;
    cuda::copy(calls[i].recv.data, staged[i].recv.data, calls[i].recv.bytes(), stream_.native());
  }
  stream_.synchronize();
}

}  // namespace ottava
