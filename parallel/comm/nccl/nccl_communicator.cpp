#include "parallel/comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/cuda/runtime.h"
#include "parallel/comm/all_ranks.h"
#include "parallel/comm/connections.h"
#include "parallel/comm/lane.h"
#include "parallel/comm/nccl/nccl_rank.h"

namespace ottava::nccl {
namespace {

// How many ends of calls can be told apart; for an older call a later one is waited for, which is never
// wrong.
constexpr uint64_t kEvents = 64;

// Bytes for types that NCCL does not have and only moves.
struct Unit {
  ncclDataType_t type;
  int64_t per_element;
};
Unit unit_of(DType dtype) {
  using enum DType;
  switch (dtype) {
    case f32:
      return {ncclFloat32, 1};
    case bf16:
      return {ncclBfloat16, 1};
    case f16:
      return {ncclFloat16, 1};
    case f64:
      return {ncclFloat64, 1};
    case i32:
      return {ncclInt32, 1};
    case u32:
      return {ncclUint32, 1};
    case i64:
      return {ncclInt64, 1};
    default:
      return {ncclUint8, size_of(dtype)};
  }
}

ncclRedOp_t op_of(ReduceOp op) { return op == ReduceOp::max ? ncclMax : ncclSum; }

bool is_capturing(const Stream& stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.native()), &capture);
  return capture != cudaStreamCaptureStatusNone;
}

// Every library with ncclCommSplit (2.18) takes the limits as arguments, so the environment need not set
// them.
ncclConfig_t configuration(WorldOptions options) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // a call that hangs can be aborted
  if (options.max_ctas > 0) {
    config.minCTAs = 1;
    config.maxCTAs = options.max_ctas;
  }
  return config;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Members members, std::shared_ptr<NcclRank> rank, std::shared_ptr<Handle> handle,
                   WorldOptions options)
      : Communicator(std::move(members), rank->shared_state()),
        nccl_(std::move(rank)),
        handle_(std::move(handle)),
        options_(options),
        ready_(Device{DeviceType::cuda, options.gpu}) {}

  /// Makes a first call, once for each handle. NCCL connects ranks in their first calls, which hold the host
  /// until the others make theirs. Here all ranks do; in a step of a pipeline, one might first wait for
  /// another communicator's call.
  void connect();
  void connect_pairs(const std::vector<int>& peers) override;
  ~NcclCommunicator() override {
    if (handle_.use_count() <= 2) nccl_->release(handle_);  // this one's and the watching thread's
  }
  std::string_view transport() const override { return "nccl"; }
  bool overlaps() const override { return true; }
  bool carries_axes_apart() const override { return true; }
  bool can_be_recorded() const override { return true; }
  void graph_launched(Stream& stream, std::string_view name, int64_t calls) override;

 private:
  void issue(Stream& stream, uint64_t ticket, std::vector<CollectiveCall> calls) override;
  void wait_for(uint64_t ticket, Stream& stream) override;
  bool is_captured(Stream& stream) const override { return is_capturing(stream); }
  std::unique_ptr<Communicator> make_split(Members members) override;
  void stay_out_of_split() override;
  std::shared_ptr<Handle> split_handle(int color, int key);
  template <class Calls>
  void group(const EnteredCall& entering, const Calls& calls);
  template <class Calls>
  void connect_by(const Calls& calls);
  void enqueue(const CollectiveCall& call);
  Stream& own_stream() { return nccl_->stream(lane_of(axis())); }

  std::shared_ptr<NcclRank> nccl_;
  std::shared_ptr<Handle> handle_;
  WorldOptions options_;
  Event ready_;
  std::array<std::shared_ptr<Event>, kEvents> done_;
};

/// Makes the calls as one group, and waits until NCCL has put it on its stream.
template <class Calls>
void NcclCommunicator::group(const EnteredCall& entering, const Calls& calls) {
  try {
    const auto used = nccl_->use(*handle_);
    check(ncclGroupStart(), "ncclGroupStart");
    try {
      calls();
    } catch (...) {
      ncclGroupEnd();  // what the thread calls next is not of this group
      throw;
    }
    check(ncclGroupEnd(), "ncclGroupEnd");
  } catch (const LostPeer&) {
    nccl_->hear_who_is_gone();
    throw;
  }
  nccl_->settle(handle_, "ncclGroupEnd", &entering);
}

void NcclCommunicator::issue(Stream& stream, uint64_t ticket, std::vector<CollectiveCall> calls) {
  if (stream.type() != DeviceType::cuda) {
    fail<CommError>(name_of(calls[0].kind),
                    "'{}' is on {}, but NCCL transfers only GPU tensors: use the control communicator",
                    calls[0].label, to_string(stream.device()));
  }
  Stream& own = own_stream();
  ready_.record(stream);
  ready_.wait(own);
  // A clock is set while a step is traced; such a step is not captured into a graph.
  std::shared_ptr<const DeviceClock> clock = state().calls().clock();
  std::shared_ptr<Event> begun;
  if (clock) {
    begun = std::make_shared<Event>(Device{DeviceType::cuda, options_.gpu});
    begun->record(own);
  }
  EnteredCall entering = entered(calls);
  group(entering, [&] {
    for (const CollectiveCall& call : calls) enqueue(call);
  });
  std::shared_ptr<Event>& done = done_[ticket % kEvents];
  if (!done || done.use_count() > 1) done = std::make_shared<Event>(Device{DeviceType::cuda, options_.gpu});
  done->record(own);
  if (is_capturing(stream)) return;
  nccl_->issued(lane_of(axis()),
                {done, std::move(entering), calls[0].record, std::move(begun), std::move(clock)});
}

/// Makes the calls as one group on the communicator's stream, and waits for their end.
template <class Calls>
void NcclCommunicator::connect_by(const Calls& calls) {
  const EnteredCall connecting = entered(Collective::barrier, kConnecting);
  group(connecting, [&] { calls(static_cast<cudaStream_t>(own_stream().native())); });
  auto done = std::make_shared<Event>(Device{DeviceType::cuda, options_.gpu});
  done->record(own_stream());
  nccl_->issued(lane_of(axis()), {done, connecting});
  own_stream().synchronize();
  if (state().failed()) throw CommError(state().failure());
}

void NcclCommunicator::connect() {
  connect_by([&](cudaStream_t stream) {
    void* zero = nccl_->scratch();
    check(ncclAllReduce(zero, zero, 1, ncclInt32, ncclSum, handle_->comm, stream), "ncclAllReduce");
  });
}

void NcclCommunicator::connect_pairs(const std::vector<int>& peers) {
  std::vector<int> more;
  for (int peer : peers)
    if (peer != rank() && handle_->peers.insert(peer).second) more.push_back(peer);
  if (more.empty()) return;
  connect_by([&](cudaStream_t stream) {
    for (int peer : more) {
      check(ncclSend(nccl_->scratch(), 1, ncclInt32, peer, handle_->comm, stream), "ncclSend");
      check(ncclRecv(nccl_->scratch(), 1, ncclInt32, peer, handle_->comm, stream), "ncclRecv");
    }
  });
}

void NcclCommunicator::enqueue(const CollectiveCall& call) {
  using enum Collective;
  auto [type, per_element] = unit_of(call.send.dtype);
  auto units = [&, factor = per_element](int64_t elements) -> size_t { return elements * factor; };
  auto stream = static_cast<cudaStream_t>(own_stream().native());
  ncclComm_t comm = handle_->comm;
  int64_t mine = call.count(rank());
  switch (call.kind) {
    case all_reduce:
      return check(ncclAllReduce(call.send.data, call.recv.data, units(call.send.numel()), type,
                                 op_of(call.op), comm, stream),
                   "ncclAllReduce");
    case reduce_scatter:
      return check(
          ncclReduceScatter(call.send.data, call.recv.data, units(mine), type, op_of(call.op), comm, stream),
          "ncclReduceScatter");
    case all_gather:
      return check(ncclAllGather(call.send.data, call.recv.data, units(mine), type, comm, stream),
                   "ncclAllGather");
    case all_to_all:
      for (int r = 0; r < size(); ++r) {
        check(ncclSend(call.send.at(r * mine), units(mine), type, r, comm, stream), "ncclSend");
        check(ncclRecv(call.recv.at(r * mine), units(mine), type, r, comm, stream), "ncclRecv");
      }
      return;
    case send:
      return check(ncclSend(call.send.data, units(call.send.numel()), type, call.peer, comm, stream),
                   "ncclSend");
    case recv:
      return check(ncclRecv(call.recv.data, units(call.recv.numel()), type, call.peer, comm, stream),
                   "ncclRecv");
    case graph:
      return;
    case barrier:
      return check(ncclAllReduce(nccl_->scratch(), nccl_->scratch(), 1, ncclInt32, ncclSum, comm, stream),
                   "ncclAllReduce");
  }
}

// The watch sees the graph as one call, whose end says that the collectives in it have ended.
void NcclCommunicator::graph_launched(Stream& stream, std::string_view name, int64_t calls) {
  auto done = std::make_shared<Event>(Device{DeviceType::cuda, options_.gpu});
  done->record(stream);
  int64_t record = -1;
  if (size() > 1) {
    record = state().calls().issued({.step = state().step(),
                                     .collective = Collective::graph,
                                     .axis = axis(),
                                     .label = std::string(name),
                                     .group_size = size(),
                                     .calls = static_cast<int>(calls)});
  }
  nccl_->issued(0, {done, entered(Collective::graph, std::string(name), calls), record});
}

void NcclCommunicator::wait_for(uint64_t ticket, Stream& stream) {
  if (state().failed()) throw CommError(state().failure());
  done_[ticket % kEvents]->wait(stream);
}

std::unique_ptr<Communicator> NcclCommunicator::make_split(Members members) {
  // A group of all ranks needs no second set of NCCL's buffers, unless it runs beside this one.
  const ConnectedGroup group{members.world_ranks, lane_of(members.axis)};
  if (group == ConnectedGroup{world_ranks(), lane_of(axis())})
    return std::make_unique<NcclCommunicator>(std::move(members), nccl_, handle_, options_);
  std::shared_ptr<Handle> handle = split_handle(members.world_ranks[0], members.rank);
  auto part = std::make_unique<NcclCommunicator>(std::move(members), nccl_, std::move(handle), options_);
  part->connect();
  return part;
}

// Every rank of the parent takes part in ncclCommSplit.
void NcclCommunicator::stay_out_of_split() { split_handle(NCCL_SPLIT_NOCOLOR, 0); }

std::shared_ptr<Handle> NcclCommunicator::split_handle(int color, int key) {
  auto handle = std::make_shared<Handle>();
  ncclConfig_t config = configuration(options_);
  const EnteredCall splitting = entered(Collective::barrier, "splitting");
  try {
    {
      const auto used = nccl_->use(*handle_);
      check(ncclCommSplit(handle_->comm, color, key, &handle->comm, &config), "ncclCommSplit");
    }
    nccl_->settle(handle_, "ncclCommSplit", &splitting);
    if (color == NCCL_SPLIT_NOCOLOR) return nullptr;
    nccl_->settle(handle, "ncclCommSplit", &splitting);
  } catch (...) {
    give_up(std::move(handle));
    throw;
  }
  nccl_->watch(handle);
  return handle;
}

}  // namespace

bool available() { return true; }
void require_library() { ncclGetErrorString(ncclSuccess); }  // the first call opens it

std::unique_ptr<Communicator> make_world(Bootstrap& bootstrap, std::shared_ptr<RankState> state,
                                         WorldOptions options) {
  ncclUniqueId id{};
  if (bootstrap.rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  std::string mine = bootstrap.rank() == 0 ? std::string(id.internal, sizeof id.internal) : std::string();
  std::string shared = bootstrap.all_gather(mine)[0];
  std::memcpy(id.internal, shared.data(), sizeof id.internal);
  auto rank = std::make_shared<NcclRank>(std::move(state), options.gpu);
  auto handle = std::make_shared<Handle>();
  ncclConfig_t config = configuration(options);
  try {
    check(ncclCommInitRankConfig(&handle->comm, bootstrap.size(), id, bootstrap.rank(), &config),
          "ncclCommInitRankConfig");
    rank->settle(handle, "ncclCommInitRankConfig");
  } catch (const CommError& error) {
    give_up(std::move(handle));
    throw CommError(fmt::format(
        "{}; set NCCL_DEBUG=INFO for details from NCCL, or comm.backend to mpi or tcp to train without it{}",
        error.what(), options.advice));
  }
  rank->watch(handle);
  Communicator::Members members{"world", all_ranks(bootstrap.size()), bootstrap.rank()};
  auto world =
      std::make_unique<NcclCommunicator>(std::move(members), std::move(rank), std::move(handle), options);
  world->connect();
  return world;
}

}  // namespace ottava::nccl
