#include "parallel/comm/messages/message_transport.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/round_up.h"
#include "parallel/comm/reduce_elements.h"

namespace ottava {
namespace {

// Up to this size of what a rank sends, the number of messages decides how long a call takes.
constexpr int64_t kSmallBytes = 8 << 10;
// In a round of a small call, what a rank holds goes to one fewer other ranks than this: 32 ranks need one
// round, 4096 need three, and 65 messages each in place of 4095. A round more is what takes long where ranks
// share cores: of 16 ranks on two, steps took a fifth longer with 8.
constexpr int kRadix = 32;
// Time between announcing a failure and releasing buffers. On one machine MPI lets a rank read another's
// memory, and a signal kills the reader if that memory is gone, so the others need a moment to hear of the
// failure.
constexpr auto kFarewell = std::chrono::milliseconds(300);
// A peer's segment is at least this part (1/64) of `workspace_bytes`: with more peers the workspace grows,
// rather than have messages that are all latency.
constexpr int64_t kSmallestSegment = 64;

int64_t element_bytes(const CollectiveCall& call) { return size_of(call.send.dtype); }

void copy_bytes(char* to, const char* from, int64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

uint32_t mixed(uint32_t hash, uint32_t value) { return (hash ^ value) * 16777619u; }

bool is_pairwise(const CollectiveCall& call) {
  return call.kind == Collective::send || call.kind == Collective::recv;
}

}  // namespace

MessageTransport::MessageTransport(std::shared_ptr<MessagePort> port, std::shared_ptr<RankState> state,
                                   Group group, int64_t workspace_bytes)
    : port_(std::move(port)),
      state_(std::move(state)),
      group_(std::move(group)),
      workspace_bytes_(workspace_bytes),
      moves_(port_, state_),
      even_(port_, state_),
      odd_(port_, state_),
      inputs_(group_.world_ranks.size()) {
  int64_t peers = std::clamp<int64_t>(size() - 1, 1, kSmallestSegment);
  segment_bytes_ = workspace_bytes_ / peers;
  for (char c : group_.axis) group_hash_ = mixed(group_hash_, static_cast<unsigned char>(c));
  for (int r : group_.world_ranks) group_hash_ = mixed(group_hash_, static_cast<uint32_t>(r));
  group_hash_ = mixed(group_hash_, static_cast<uint32_t>(group_.ordinal));
}

// Made of group, call (only where every rank counts alike), kind and size. Ranks that disagree about any of
// these find no match and stop at the time limit, where the ledger compares their calls. OpenMPI 4.1 must
// never see messages of different sizes match: it writes a long message past the end of a shorter receive.
int MessageTransport::tag(const CollectiveCall& call) const {
  uint32_t hash = mixed(group_hash_, is_pairwise(call) ? 0 : static_cast<uint32_t>(sequence_));
  hash = mixed(hash, static_cast<uint32_t>(call.kind == Collective::recv ? Collective::send : call.kind));
  auto bytes = static_cast<uint64_t>(call.elements() * element_bytes(call));
  hash = mixed(mixed(hash, static_cast<uint32_t>(bytes)), static_cast<uint32_t>(bytes >> 32));
  return static_cast<int>((hash ^ hash >> 16) % static_cast<uint32_t>(port_->largest_tag()));
}

bool MessageTransport::is_small(const CollectiveCall& call) const {
  const bool needs_all = call.kind == Collective::all_reduce || call.kind == Collective::all_gather;
  return needs_all && call.send.bytes() <= kSmallBytes;
}

std::vector<MessageTransport::Segment> MessageTransport::segments_of(
    std::span<const CollectiveCall> calls) const {
  std::vector<Segment> segments;
  for (const CollectiveCall& call : calls) {
    if (call.kind != Collective::all_reduce && call.kind != Collective::reduce_scatter) continue;
    if (is_small(call)) continue;
    int64_t longest = pieces_of(call.elements(), size()), step = segment_bytes_ / element_bytes(call);
    for (int64_t begin = 0; begin < longest; begin += step) {
      segments.push_back({&call, begin, std::min(begin + step, longest)});
    }
  }
  return segments;
}

// Peer p's part is at (p - 1) x segment bytes of the workspace, where p counts from this rank.
void MessageTransport::post(const Segment& s, char* workspace, Exchange& exchange) {
  const CollectiveCall& call = *s.call;
  int64_t element = element_bytes(call), stride = (s.end - s.begin) * element;
  auto part = [&](int rank) {
    return std::clamp<int64_t>(call.count(rank) - s.begin, 0, s.end - s.begin) * element;
  };
  for (int distance = 1; distance < size(); ++distance) {
    int from = peer(size() - distance);
    exchange.receive(workspace + (distance - 1) * stride, part(group_.rank), world(from), tag(call));
  }
  for (int distance = 1; distance < size(); ++distance) {
    int to = peer(distance);
    exchange.send(call.send.at(call.offset(to) + s.begin), part(to), world(to), tag(call));
  }
}

void MessageTransport::add_up(const Segment& s, char* workspace) {
  const CollectiveCall& call = *s.call;
  int64_t stride = (s.end - s.begin) * element_bytes(call);
  int64_t offset = call.offset(group_.rank), end = std::min(s.end, call.count(group_.rank));
  if (end <= s.begin) return;
  inputs_[group_.rank] = call.send.at(offset + s.begin);
  for (int distance = 1; distance < size(); ++distance) {
    inputs_[peer(size() - distance)] = workspace + (distance - 1) * stride;
  }
  int64_t target = (call.kind == Collective::all_reduce ? offset : 0) + s.begin;
  reduce_elements(call.send.dtype, call.op, inputs_, call.recv.at(target), end - s.begin);
}

// While one segment is added up, the next one travels.
void MessageTransport::reduce_all(std::span<const CollectiveCall> calls) {
  std::vector<Segment> segments = segments_of(calls);
  auto bytes = [&](const Segment& s) {
    return static_cast<size_t>((s.end - s.begin) * element_bytes(*s.call) * (size() - 1));
  };
  auto start = [&](size_t i) {
    std::vector<char>& workspace = workspace_[i % 2];
    if (workspace.size() < bytes(segments[i])) workspace.resize(bytes(segments[i]));
    post(segments[i], workspace.data(), i % 2 ? odd_ : even_);
  };
  for (size_t i = 0; i < segments.size(); ++i) {
    if (i == 0) start(0);
    if (i + 1 < segments.size()) start(i + 1);
    (i % 2 ? odd_ : even_).finish();
    add_up(segments[i], workspace_[i % 2].data());
  }
}

// Every rank gets the vectors of all, as they are, and adds them up by itself: in rank order, whatever order
// they came in. That of peer(i) lies at i x its bytes of a call's part of the workspace, so what a rank holds
// is what those before it lack, in one piece.
void MessageTransport::exchange_small(std::span<const CollectiveCall> calls) {
  const auto bytes_of_all = [&](const CollectiveCall& call) {
    return round_up(size() * call.send.bytes(), sizeof(int64_t));  // the next call's vectors are aligned
  };
  size_t need = 0;
  for (const CollectiveCall& call : calls)
    if (is_small(call)) need += bytes_of_all(call);
  if (need == 0) return;
  if (small_.size() < need) small_.resize(need);
  const auto for_each_small = [&](const auto& body) {
    char* vectors = small_.data();
    for (const CollectiveCall& call : calls) {
      if (!is_small(call)) continue;
      body(call, vectors, call.send.bytes());
      vectors += bytes_of_all(call);
    }
  };
  for_each_small([](const CollectiveCall& call, char* vectors, int64_t bytes) {
    copy_bytes(vectors, static_cast<const char*>(call.send.data), bytes);
  });
  for (int64_t held = 1; held < size(); held *= kRadix) {
    for_each_small([&](const CollectiveCall& call, char* vectors, int64_t bytes) {
      for (int64_t distance = held; distance < std::min<int64_t>(kRadix * held, size()); distance += held) {
        const int64_t part = std::min(held, size() - distance) * bytes;
        const int from = peer(static_cast<int>(distance)), to = peer(static_cast<int>(size() - distance));
        even_.receive(vectors + distance * bytes, part, world(from), tag(call));
        even_.send(vectors, part, world(to), tag(call));
      }
    });
    even_.finish();
  }
  for_each_small([&](const CollectiveCall& call, const char* vectors, int64_t bytes) {
    for (int i = 0; i < size(); ++i) {
      inputs_[peer(i)] = vectors + i * bytes;
      if (call.kind == Collective::all_gather)
        copy_bytes(call.recv.at(call.offset(peer(i))), vectors + i * bytes, bytes);
    }
    if (call.kind == Collective::all_reduce)
      reduce_elements(call.send.dtype, call.op, inputs_, call.recv.data, call.send.numel());
  });
}

// Everything else that only moves blocks, the second half of all_reduce included.
void MessageTransport::post_moves(std::span<const CollectiveCall> calls) {
  for (const CollectiveCall& call : calls) {
    bool gathers = call.kind == Collective::all_gather || call.kind == Collective::all_reduce;
    if (is_small(call) || (!gathers && call.kind != Collective::all_to_all)) continue;
    int64_t element = element_bytes(call);
    auto bytes = [&](int rank) { return call.count(rank) * element; };
    int64_t mine = bytes(group_.rank);
    char* own = call.recv.at(call.offset(group_.rank));
    const char* block = own;
    if (call.kind == Collective::all_gather) block = static_cast<const char*>(call.send.data);
    if (call.kind == Collective::all_to_all) block = call.send.at(call.offset(group_.rank));
    for (int distance = 1; distance < size(); ++distance) {
      int from = peer(size() - distance);
      moves_.receive(call.recv.at(call.offset(from)), bytes(from), world(from), tag(call));
    }
    for (int distance = 1; distance < size(); ++distance) {
      int to = peer(distance);
      bool exchanges = call.kind == Collective::all_to_all;
      moves_.send(exchanges ? call.send.at(call.offset(to)) : block, mine, world(to), tag(call));
    }
    copy_bytes(own, block, mine);
  }
}

// Dissemination: after round k each rank knows of 2^(k+1) ranks.
void MessageTransport::barrier(const CollectiveCall& call) {
  for (int distance = 1; distance < size(); distance <<= 1) {
    even_.await_signal(world(peer(size() - distance)), tag(call));
    even_.signal(world(peer(distance)), tag(call));
    even_.finish();
  }
}

void MessageTransport::run(std::span<const CollectiveCall> calls) {
  try {
    if (!std::ranges::all_of(calls, is_pairwise)) ++sequence_;
    for (const CollectiveCall& call : calls) {
      if (call.kind == Collective::recv)
        moves_.receive(call.recv.data, call.recv.bytes(), world(call.peer), tag(call));
    }
    for (const CollectiveCall& call : calls) {
      if (call.kind == Collective::send)
        moves_.send(call.send.data, call.send.bytes(), world(call.peer), tag(call));
    }
    exchange_small(calls);
    reduce_all(calls);
    post_moves(calls);
    for (const CollectiveCall& call : calls) {
      if (call.kind == Collective::barrier) barrier(call);
    }
    moves_.finish();
  } catch (const std::exception& error) {
    moves_.abandon();
    even_.abandon();
    odd_.abandon();
    state_->fail(error.what());
    std::this_thread::sleep_for(kFarewell);
    throw;
  }
}

std::unique_ptr<MessageTransport> MessageTransport::split(Group group) const {
  return std::make_unique<MessageTransport>(port_, state_, std::move(group), workspace_bytes_);
}

}  // namespace ottava
