#include "parallel/comm/thread/rendezvous.h"

#include <chrono>
#include <cstring>

#include "parallel/comm/reduce_elements.h"

namespace ottava::threads {
namespace {

using Lock = std::unique_lock<std::mutex>;

char* at(const Tensor& tensor, int64_t element) {
  return static_cast<char*>(tensor.data) + element * static_cast<int64_t>(size_of(tensor.dtype));
}

void copy_elements(const Tensor& to, int64_t to_element, const Tensor& from, int64_t from_element,
                   int64_t count) {
  char *target = at(to, to_element), *source = at(from, from_element);
  if (count > 0 && target != source)
    std::memcpy(target, source, static_cast<size_t>(count) * size_of(to.dtype));
}

bool is_pairwise(const CollectiveCall& call) {
  return call.kind == Collective::send || call.kind == Collective::recv;
}

std::string text_of(const CollectiveCall& call) {
  std::string_view op = call.counts.empty() || call.kind == Collective::all_gather ? "" : name_of(call.op);
  return fmt::format("{}{}{} '{}' of {} {}", name_of(call.kind), op.empty() ? "" : " ", op, call.label,
                     call.kind == Collective::all_gather ? call.recv.numel() : call.send.numel(),
                     name_of(call.send.dtype));
}

bool same_call(const CollectiveCall& a, const CollectiveCall& b) {
  bool same = a.kind == b.kind && a.op == b.op && a.send.dtype == b.send.dtype && a.counts == b.counts;
  return same && (a.kind != Collective::broadcast || (a.peer == b.peer && a.send.numel() == b.send.numel()));
}

class ThreadTransport final : public HostTransport {
 public:
  ThreadTransport(std::shared_ptr<World> world, std::shared_ptr<RankState> state, std::string axis,
                  std::shared_ptr<World::Meeting> meeting, int rank)
      : world_(std::move(world)),
        state_(std::move(state)),
        axis_(std::move(axis)),
        meeting_(std::move(meeting)),
        rank_(rank),
        inputs_(static_cast<size_t>(meeting_->size)) {}

  std::string_view name() const override { return "thread"; }
  void run(std::span<const CollectiveCall> calls) override;
  std::shared_ptr<HostTransport> split(const std::string& axis, const std::vector<int>& world_ranks, int rank,
                                       int ordinal) override {
    return make_transport(world_, state_, axis, world_ranks, rank, ordinal);
  }

 private:
  void stop_after_failure(Lock& lock);
  template <class Ready>
  void wait_until(Lock& lock, Ready ready);
  void meet(Lock& lock);
  template <class Body>
  void copy_while_unlocked(Lock& lock, Body body);
  void check_agreement() const;
  void reduce_and_move(size_t index, const CollectiveCall& call);
  void collect_slices(size_t index, const CollectiveCall& call);
  void receive(Lock& lock, const CollectiveCall& call);
  const CollectiveCall& published(int rank, size_t index) const {
    return meeting_->published[static_cast<size_t>(rank)][index];
  }

  std::shared_ptr<World> world_;
  std::shared_ptr<RankState> state_;
  std::string axis_;
  std::shared_ptr<World::Meeting> meeting_;
  int rank_;
  std::vector<const void*> inputs_;  // of one reduction
};

// A rank that leaves early has set `failure` before it gives up the lock: while it is empty all published
// calls exist.
void ThreadTransport::stop_after_failure(Lock& lock) {
  if (!world_->failure.empty()) throw CommError(world_->failure);
}

template <class Ready>
void ThreadTransport::wait_until(Lock& lock, Ready ready) {
  using Clock = std::chrono::steady_clock;
  auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                     std::chrono::duration<double>(state_->timeout_seconds()));
  auto awake = [&] { return ready() || !world_->failure.empty(); };
  bool in_time = world_->changed.wait_until(lock, deadline, awake);
  if (ready()) return;
  std::string reason = world_->failure;
  if (!in_time) {
    lock.unlock();
    reason = state_->timeout_message();
    world_->abort(reason);
    lock.lock();
  }
  throw CommError(reason);
}

void ThreadTransport::meet(Lock& lock) {
  stop_after_failure(lock);
  uint64_t generation = meeting_->generation;
  if (++meeting_->arrived == meeting_->size) {
    meeting_->arrived = 0;
    ++meeting_->generation;
    world_->changed.notify_all();
    return;
  }
  wait_until(lock, [&] { return meeting_->generation != generation; });
}

template <class Body>
void ThreadTransport::copy_while_unlocked(Lock& lock, Body body) {
  stop_after_failure(lock);
  ++meeting_->copying;
  lock.unlock();
  body();
  lock.lock();
  if (--meeting_->copying == 0) world_->changed.notify_all();
}

void ThreadTransport::check_agreement() const {
  for (int r = 1; r < meeting_->size; ++r) {
    auto mine = meeting_->published[0], other = meeting_->published[static_cast<size_t>(r)];
    if (mine.size() != other.size()) {
      fail<CommError>(
          "comm", "the ranks of axis {} disagree: rank 0 makes {} calls in a group ({} first), rank {} {}",
          axis_, mine.size(), text_of(mine[0]), r, other.size());
    }
    for (size_t i = 0; i < mine.size(); ++i) {
      if (!same_call(mine[i], other[i])) {
        fail<CommError>("comm",
                        "the ranks of axis {} disagree about call {} of {}: rank 0 makes {}, rank {} {}",
                        axis_, i + 1, mine.size(), text_of(mine[i]), r, text_of(other[i]));
      }
    }
  }
}

// After everybody has published: everything but the second half of all_reduce.
void ThreadTransport::reduce_and_move(size_t index, const CollectiveCall& call) {
  int n = meeting_->size;
  int64_t mine = call.counts.empty() ? 0 : call.counts[static_cast<size_t>(rank_)];
  switch (call.kind) {
    case Collective::all_reduce:
    case Collective::reduce_scatter: {
      int64_t offset = call.offset(rank_);
      for (int r = 0; r < n; ++r) inputs_[static_cast<size_t>(r)] = at(published(r, index).send, offset);
      void* out = at(call.recv, call.kind == Collective::all_reduce ? offset : 0);
      return reduce_elements(call.send.dtype, call.op, inputs_, out, mine);
    }
    case Collective::all_gather:
      for (int r = 0; r < n; ++r) {
        copy_elements(call.recv, call.offset(r), published(r, index).send, 0,
                      call.counts[static_cast<size_t>(r)]);
      }
      return;
    case Collective::all_to_all:
      for (int r = 0; r < n; ++r)
        copy_elements(call.recv, r * mine, published(r, index).send, rank_ * mine, mine);
      return;
    case Collective::broadcast:
      return copy_elements(call.recv, 0, published(call.peer, index).send, 0, call.recv.numel());
    default:
      return;
  }
}

// Second half of all_reduce: the slices that the other ranks have summed.
void ThreadTransport::collect_slices(size_t index, const CollectiveCall& call) {
  if (call.kind != Collective::all_reduce) return;
  for (int r = 0; r < meeting_->size; ++r) {
    int64_t offset = call.offset(r);
    copy_elements(call.recv, offset, published(r, index).recv, offset, call.counts[static_cast<size_t>(r)]);
  }
}

void ThreadTransport::receive(Lock& lock, const CollectiveCall& call) {
  auto& box = meeting_->parcels[{call.peer, rank_}];
  wait_until(lock, [&] { return !box.empty(); });
  World::Meeting::Parcel& parcel = *box.front();
  if (parcel.tensor.numel() != call.recv.numel() || parcel.tensor.dtype != call.recv.dtype) {
    fail<CommError>("recv", "'{}' from rank {} (axis {}) is {}, but {} '{}' was sent", call.label, call.peer,
                    axis_, describe(call.recv), describe(parcel.tensor), parcel.label);
  }
  copy_while_unlocked(lock, [&] { copy_elements(call.recv, 0, parcel.tensor, 0, call.recv.numel()); });
  box.pop_front();
  parcel.taken = true;
  world_->changed.notify_all();
}

void ThreadTransport::run(std::span<const CollectiveCall> calls) {
  // Parcels live on this stack: they must leave the boxes before it does, also when this rank gives up.
  std::vector<std::unique_ptr<World::Meeting::Parcel>> sent;
  std::vector<int> destinations;
  Lock lock(world_->mutex);
  auto withdraw = [&] {
    for (size_t i = 0; i < sent.size(); ++i)
      std::erase(meeting_->parcels[{rank_, destinations[i]}], sent[i].get());
  };
  try {
    bool everybody = false;
    for (const CollectiveCall& call : calls) {
      everybody = everybody || !is_pairwise(call);
      if (call.kind != Collective::send) continue;
      sent.push_back(std::make_unique<World::Meeting::Parcel>(World::Meeting::Parcel{call.send, call.label}));
      destinations.push_back(call.peer);
      meeting_->parcels[{rank_, call.peer}].push_back(sent.back().get());
    }
    if (!sent.empty()) world_->changed.notify_all();
    if (everybody) {
      std::vector<CollectiveCall> collective;
      for (const CollectiveCall& call : calls) {
        if (!is_pairwise(call)) collective.push_back(call);
      }
      bool two_phases = false;
      for (const CollectiveCall& call : collective)
        two_phases = two_phases || call.kind == Collective::all_reduce;
      meeting_->published[static_cast<size_t>(rank_)] = collective;
      meet(lock);
      stop_after_failure(lock);
      check_agreement();
      copy_while_unlocked(lock, [&] {
        for (size_t i = 0; i < collective.size(); ++i) reduce_and_move(i, collective[i]);
      });
      if (two_phases) {
        meet(lock);
        copy_while_unlocked(lock, [&] {
          for (size_t i = 0; i < collective.size(); ++i) collect_slices(i, collective[i]);
        });
      }
      meet(lock);
    }
    for (const CollectiveCall& call : calls) {
      if (call.kind == Collective::recv) receive(lock, call);
    }
    for (auto& parcel : sent) wait_until(lock, [&] { return parcel->taken; });
  } catch (const std::exception& error) {
    if (world_->failure.empty()) world_->failure = error.what();
    world_->changed.wait(lock, [&] { return meeting_->copying == 0; });
    withdraw();
    throw;
  }
}

}  // namespace

void World::abort(const std::string& reason) {
  std::vector<std::shared_ptr<RankState>> everybody;
  {
    std::lock_guard lock(mutex);
    if (announced) return;
    announced = true;
    if (failure.empty()) failure = reason;
    everybody = states;
    changed.notify_all();
  }
  for (auto& state : everybody) {
    if (state) state->fail(reason);
  }
}

std::string World::explain() const {
  std::vector<ProgressRecord> records;
  for (const auto& state : states) {
    if (state) records.push_back(state->progress());
  }
  return blame(records);
}

std::shared_ptr<HostTransport> make_transport(std::shared_ptr<World> world, std::shared_ptr<RankState> state,
                                              const std::string& axis, const std::vector<int>& world_ranks,
                                              int rank, int ordinal) {
  std::string key = fmt::format("{}#{}", axis, ordinal);
  for (int r : world_ranks) key += fmt::format(",{}", r);
  std::shared_ptr<World::Meeting> meeting;
  {
    std::lock_guard lock(world->mutex);
    auto& slot = world->meetings[key];
    if (!slot) slot = std::make_shared<World::Meeting>(static_cast<int>(world_ranks.size()));
    meeting = slot;
  }
  return std::make_shared<ThreadTransport>(std::move(world), std::move(state), axis, std::move(meeting),
                                           rank);
}

}  // namespace ottava::threads
