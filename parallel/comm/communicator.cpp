#include "parallel/comm/communicator.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/cost.h"
#include "core/text/counted.h"
#include "core/trace/step_profile.h"
#include "parallel/comm/solo_communicator.h"

namespace ottava {
namespace {

void check_reducible(std::string_view where, DType dtype, std::string_view label) {
  using enum DType;
  switch (dtype) {
    case f32:
    case bf16:
    case f64:
    case i32:
    case u32:
    case i64:
      return;
    default:
      fail<ShapeError>(where, "'{}' is {}, which cannot be reduced: expected f32, bf16, f64, i32, u32 or i64",
                       label, name_of(dtype));
  }
}

void check_same_dtype(std::string_view where, const Tensor& send, const Tensor& recv,
                      std::string_view label) {
  if (send.dtype != recv.dtype) {
    fail<ShapeError>(where, "'{}' is sent as {} and received as {}: expected one dtype", label,
                     name_of(send.dtype), name_of(recv.dtype));
  }
}

// Blocks may only overlap where `inner` is exactly the block of `outer` that starts at `offset` elements.
void check_overlap(std::string_view where, const Tensor& inner, const Tensor& outer, int64_t offset,
                   std::string_view rule, std::string_view label) {
  if (!inner.data || !outer.data || inner.numel() == 0 || outer.numel() == 0) return;
  const char *a = inner.at(0), *b = outer.at(0);
  bool disjoint = a + inner.bytes() <= b || b + outer.bytes() <= a;
  bool in_place = offset >= 0 && a == outer.at(offset);
  if (!disjoint && !in_place) {
    fail<ShapeError>(where, "send and recv of '{}' overlap: {}", label, rule);
  }
}

// One block from each rank makes the whole.
void check_blocks(std::string_view where, const Communicator& comm, const Tensor& block, const Tensor& whole,
                  std::string_view label) {
  const int64_t sum = comm.size() * block.numel();
  if (sum != whole.numel()) {
    fail<ShapeError>(where, "'{}' has {} elements in all blocks together, expected {} ({})", label,
                     whole.numel(), sum, counted(comm.size(), "rank"));
  }
}

void check_peer(std::string_view where, const Communicator& comm, int peer, std::string_view label) {
  if (peer < 0 || peer >= comm.size()) {
    fail<ShapeError>(where, "'{}' names rank {}, but axis {} has ranks 0 to {}", label, peer, comm.axis(),
                     comm.size() - 1);
  }
  if (peer == comm.rank()) {
    fail<ShapeError>(where, "'{}' goes from rank {} to itself: copy the tensor instead", label, peer);
  }
}

}  // namespace

int64_t CollectiveCall::elements() const {
  if (kind == Collective::barrier) return 0;
  return kind == Collective::all_gather ? recv.numel() : send.numel();
}

void Request::wait(Stream& stream) const {
  if (recorded_ >= 0 && stream.type() == DeviceType::meta) stream.recorder().wait(recorded_);
  if (!owner_) return;
  if (ticket_ > owner_->issued_) {
    fail<CommError>("request", "a call of an open group cannot be waited for: end the group first (axis {})",
                    owner_->axis());
  }
  StepProfile* profile = owner_->state_->profile();
  const StepProfile::Scope waiting(profile, profile ? std::to_string(record_) : "", StepProfile::Kind::wait);
  owner_->wait_for(ticket_, stream);
}

Communicator::Communicator(Members members, std::shared_ptr<RankState> state)
    : axis_(std::move(members.axis)),
      world_ranks_(std::move(members.world_ranks)),
      rank_(members.rank),
      state_(std::move(state)),
      group_(state_->add_group(axis_, world_ranks_)),
      runs_(runs_of(world_ranks_)) {}

Request Communicator::all_reduce(Stream& stream, const AllReduce& a) {
  constexpr std::string_view where = "all_reduce";
  Tensor recv = a.recv.empty() ? a.send : a.recv;
  check_same_dtype(where, a.send, recv, a.label);
  check_reducible(where, a.send.dtype, a.label);
  if (recv.numel() != a.send.numel()) {
    fail<ShapeError>(where, "'{}' is sent as {} and received as {}", a.label, describe(a.send),
                     describe(recv));
  }
  check_overlap(where, a.send, recv, 0, "in place, recv is send itself", a.label);
  return submit(stream, {.kind = Collective::all_reduce, .op = a.op, .send = a.send, .recv = recv}, a.label);
}

Request Communicator::reduce_scatter(Stream& stream, const ReduceScatter& a) {
  constexpr std::string_view where = "reduce_scatter";
  check_same_dtype(where, a.send, a.recv, a.label);
  check_reducible(where, a.send.dtype, a.label);
  check_blocks(where, *this, a.recv, a.send, a.label);
  check_overlap(where, a.recv, a.send, rank_ * a.recv.numel(), "in place, recv is this rank's block of send",
                a.label);
  return submit(stream, {.kind = Collective::reduce_scatter, .op = a.op, .send = a.send, .recv = a.recv},
                a.label);
}

Request Communicator::all_gather(Stream& stream, const AllGather& a) {
  constexpr std::string_view where = "all_gather";
  check_same_dtype(where, a.send, a.recv, a.label);
  check_blocks(where, *this, a.send, a.recv, a.label);
  check_overlap(where, a.send, a.recv, rank_ * a.send.numel(), "in place, send is this rank's block of recv",
                a.label);
  return submit(stream, {.kind = Collective::all_gather, .send = a.send, .recv = a.recv}, a.label);
}

Request Communicator::all_to_all(Stream& stream, const AllToAll& a) {
  constexpr std::string_view where = "all_to_all";
  check_same_dtype(where, a.send, a.recv, a.label);
  if (a.send.numel() != a.recv.numel() || a.send.numel() % size() != 0) {
    fail<ShapeError>(where, "'{}' sends {} and receives {} elements: expected the same multiple of {}",
                     a.label, a.send.numel(), a.recv.numel(), counted(size(), "rank"));
  }
  check_overlap(where, a.send, a.recv, -1, "all_to_all is never in place", a.label);
  return submit(stream, {.kind = Collective::all_to_all, .send = a.send, .recv = a.recv}, a.label);
}

Request Communicator::send(Stream& stream, const Send& a) {
  check_peer("send", *this, a.to, a.label);
  return submit(stream, {.kind = Collective::send, .send = a.tensor, .recv = a.tensor, .peer = a.to},
                a.label);
}

Request Communicator::recv(Stream& stream, const Recv& a) {
  check_peer("recv", *this, a.from, a.label);
  return submit(stream, {.kind = Collective::recv, .send = a.tensor, .recv = a.tensor, .peer = a.from},
                a.label);
}

void Communicator::barrier(Stream& stream, std::string_view label) {
  if (grouping_) fail<CommError>("barrier", "'{}' cannot be part of a group: end the group first", label);
  stream.synchronize();
  submit(stream, {.kind = Collective::barrier}, label).wait(stream);
  stream.synchronize();
}

void Communicator::group_begin() {
  if (grouping_) fail<CommError>("group", "a group is already open on axis {}: groups do not nest", axis_);
  grouping_ = true;
}

Request Communicator::group_end() {
  if (!grouping_) fail<CommError>("group", "no group is open on axis {}", axis_);
  grouping_ = false;
  Stream* stream = std::exchange(group_stream_, nullptr);
  std::vector<CollectiveCall> calls = std::exchange(group_calls_, {});
  if (calls.empty()) return {};
  return carry_out(*stream, std::move(calls));
}

Request Communicator::submit(Stream& stream, CollectiveCall call, std::string_view label) {
  if (state_->failed()) throw CommError(state_->failure());
  call.label = label;
  call.ranks = size();
  if (grouping_) {
    if (group_stream_ && group_stream_ != &stream) {
      fail<CommError>(name_of(call.kind), "'{}' is on another stream than its group: use one stream",
                      call.label);
    }
    group_stream_ = &stream;
    group_calls_.push_back(std::move(call));
    return {this, issued_ + 1};
  }
  std::vector<CollectiveCall> calls;
  calls.push_back(std::move(call));
  return carry_out(stream, std::move(calls));
}

Request Communicator::carry_out(Stream& stream, std::vector<CollectiveCall> calls) {
  const bool records = stream.type() == DeviceType::meta;
  RecordedTransfer transfer{.axis = axis_, .ranks = size()};
  if (size() > 1) transfer.stride = world_ranks_[1] - world_ranks_[0];
  const CollectiveCall& first = calls.front();
  CallRecord record{.step = state_->step(),
                    .collective = first.kind,
                    .axis = axis_,
                    .label = first.label,
                    .group_size = size(),
                    .calls = static_cast<int>(calls.size()),
                    .dtype = first.send.dtype,
                    .in_elements = first.send.numel(),
                    .out_elements = first.recv.numel()};
  for (const CollectiveCall& call : calls) {
    const CommStats::Entry entry = entry_of(call);
    stats().record(entry);
    record.payload_bytes += entry.payload_bytes;
    record.sent_bytes += entry.sent_bytes;
    if (records)
      transfer.calls.push_back({name_of(call.kind), call.label, entry.payload_bytes, entry.sent_bytes});
  }
  if (records) return Request(stream.recorder().issue(std::move(transfer)));
  // What goes into a graph would never be seen to end: the launch is recorded in its place.
  const bool is_seen = size() > 1 && !is_captured(stream);
  const int64_t id = is_seen ? state_->calls().issued(std::move(record)) : -1;
  calls.front().record = id;
  ++issued_;
  issue(stream, issued_, std::move(calls));
  return {this, issued_, id};
}

EnteredCall Communicator::entered(Collective collective, std::string label, int64_t calls) const {
  return {.collective = collective,
          .axis = axis_,
          .label = std::move(label),
          .work = state_->work(),
          .calls = calls,
          .group = group_,
          .ranks = runs_};
}

EnteredCall Communicator::entered(const std::vector<CollectiveCall>& calls) const {
  EnteredCall call = entered(calls[0].kind, calls[0].label, std::ssize(calls));
  call.elements = calls[0].elements();
  call.collectives = std::ranges::count_if(
      calls, [](const auto& c) { return c.kind != Collective::send && c.kind != Collective::recv; });
  if (call.collectives == 0) {
    std::set<int> peers;
    for (const CollectiveCall& c : calls) peers.insert(world_ranks_[c.peer]);
    call.ranks = runs_of({peers.begin(), peers.end()});
  }
  return call;
}

CommStats::Entry Communicator::entry_of(const CollectiveCall& call) const {
  using enum Collective;
  int64_t n = size(), element = size_of(call.send.dtype);
  int64_t payload = call.send.bytes(), sent = 0;
  const int64_t block = call.count(rank_) * element;
  switch (call.kind) {
    case all_reduce:
      sent = payload - block + (n - 1) * block;
      break;
    case reduce_scatter:
    case all_to_all:
      sent = payload - block;
      break;
    case all_gather:
      payload = call.recv.bytes();
      sent = (n - 1) * block;
      break;
    case send:
      sent = payload;
      break;
    case recv:
      break;
    case barrier:
    case graph:
      payload = 0;
      break;
  }
  return {call.kind, axis_, call.label, payload, sent};
}

Communicator::Members Communicator::members_of(std::string axis, const std::vector<int>& ranks) const {
  Members members{std::move(axis), {}, -1};
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size() || (i > 0 && ranks[i] <= ranks[i - 1])) {
      fail<ShapeError>("split", "axis {}: the ranks must ascend within 0 to {}", members.axis, size() - 1);
    }
    if (ranks[i] == rank_) members.rank = static_cast<int>(i);
    members.world_ranks.push_back(world_ranks_[ranks[i]]);
  }
  if (members.rank < 0)
    fail<ShapeError>("split", "axis {}: rank {} is not among its own group", members.axis, rank_);
  return members;
}

std::unique_ptr<Communicator> Communicator::split(std::string axis, const std::vector<int>& ranks) {
  Members members = members_of(std::move(axis), ranks);
  if (members.world_ranks.size() == 1) {
    if (size() > 1) stay_out_of_split();
    return std::make_unique<SoloCommunicator>(members.axis, members.world_ranks[0], state_);
  }
  return make_split(std::move(members));
}

void Communicator::abort(const std::string& reason) noexcept {
  try {
    state_->fail(fmt::format("[comm] rank {} stopped: {}", state_->rank(), reason));
    settle();
  } catch (...) {  // out of memory while reporting an error: the caller is about to stop anyway
  }
}

Group::~Group() {
  if (ended_) return;
  communicator_.grouping_ = false;
  communicator_.group_stream_ = nullptr;
  communicator_.group_calls_.clear();
}

Request Group::end() {
  ended_ = true;
  return communicator_.group_end();
}

}  // namespace ottava
