#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tests/parallel/comm/communicator_conformance.h"

namespace ottava::conformance {
namespace {

// Element i of rank r: fixed, irregular, of mixed sign, so that another order of summation gives other bits.
template <class T>
T element(int rank, int64_t i) {
  uint32_t h = static_cast<uint32_t>(i) * 2654435761u + static_cast<uint32_t>(rank + 1) * 40503u;
  h ^= h >> 15;
  h *= 2246822519u;
  h ^= h >> 13;
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(h);
  else
    return T(static_cast<float>(static_cast<int32_t>(h)) * 1e-6f);
}

template <class T>
Values<T> data_of(int rank, int64_t count, int64_t from = 0) {
  Values<T> data;
  data.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) data.push_back(element<T>(rank, from + i));
  return data;
}

template <class T>
T reduced(ReduceOp op, int ranks, int64_t i) {
  using A = std::conditional_t<std::is_same_v<T, bf16>, float, T>;
  A total = static_cast<A>(element<T>(0, i));
  for (int r = 1; r < ranks; ++r) {
    A next = static_cast<A>(element<T>(r, i));
    if (op == ReduceOp::max)
      total = std::max(total, next);
    else if constexpr (std::is_integral_v<A>)
      total = static_cast<A>(static_cast<uint64_t>(total) + static_cast<uint64_t>(next));
    else
      total += next;
  }
  return static_cast<T>(total);
}

template <class T>
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <class T>
void expect_bits(const Values<T>& got, const Values<T>& want, std::string_view what) {
  expect(got.size() == want.size(), "{}: {} elements, expected {}", what, got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    expect(same_bits(got[i], want[i]), "{} ({}): element {} of {} differs", what, name_of(DTypeOf<T>::value),
           i, got.size());
  }
}

template <class F>
void for_each_dtype(F f) {
  f.template operator()<float>();
  f.template operator()<bf16>();
  f.template operator()<double>();
  f.template operator()<int32_t>();
  f.template operator()<uint32_t>();
  f.template operator()<int64_t>();
}

// Sizes below, at and above what transports treat as small, not divisible by any number of ranks.
constexpr int64_t kCounts[] = {0, 1, 2, 3, 17, 1000, 40009};

void all_reduce_cases(Communicator& world) {
  Stream stream = stream_for(world);
  int n = world.size();
  for_each_dtype([&]<typename T>() {
    for (int64_t count : kCounts) {
      for (ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
        Values<T> send = data_of<T>(world.rank(), count), untouched = send, recv(send.size()), want;
        for (int64_t i = 0; i < count; ++i) want.push_back(reduced<T>(op, n, i));
        send.reserve(1);
        recv.reserve(1);
        finish(world.all_reduce(stream,
                                {view_of(send.data(), {count}), view_of(recv.data(), {count}), op, "out"}),
               stream);
        expect_bits(recv, want, "all_reduce");
        expect_bits(send, untouched, "all_reduce changed its input");
        finish(world.all_reduce(stream, {.send = view_of(send.data(), {count}), .op = op, .label = "in"}),
               stream);
        expect_bits(send, want, "all_reduce in place");
      }
    }
  });
}

void reduce_scatter_cases(Communicator& world) {
  Stream stream = stream_for(world);
  int n = world.size(), r = world.rank();
  for_each_dtype([&]<typename T>() {
    for (int64_t count : kCounts) {
      const int64_t offset = r * count, total = n * count;
      Values<T> send = data_of<T>(r, total), recv(static_cast<size_t>(count)), want;
      for (int64_t i = 0; i < count; ++i) want.push_back(reduced<T>(ReduceOp::sum, n, offset + i));
      finish(world.reduce_scatter(stream, {view_of(send.data(), {total}), view_of(recv.data(), {count}),
                                           ReduceOp::sum, "out"}),
             stream);
      expect_bits(recv, want, "reduce_scatter");
      expect_bits(send, data_of<T>(r, total), "reduce_scatter changed its input");
      finish(world.reduce_scatter(stream, {view_of(send.data(), {total}),
                                           view_of(send.data() + offset, {count}), ReduceOp::sum, "in"}),
             stream);
      expect_bits(Values<T>(send.begin() + offset, send.begin() + offset + count), want,
                  "reduce_scatter in place");
    }
  });
}

template <class T>
void gather_and_exchange(Communicator& world) {
  Stream stream = stream_for(world);
  int n = world.size(), r = world.rank();
  for (int64_t count : kCounts) {
    const int64_t offset = r * count, total = n * count;
    {
      Values<T> send = data_of<T>(r, count), recv(static_cast<size_t>(total)), want;
      for (int q = 0; q < n; ++q) {
        Values<T> block = data_of<T>(q, count);
        want.insert(want.end(), block.begin(), block.end());
      }
      finish(world.all_gather(stream, {view_of(send.data(), {count}), view_of(recv.data(), {total}), "out"}),
             stream);
      expect_bits(recv, want, "all_gather");
      std::fill(recv.begin(), recv.end(), T{});
      std::copy(send.begin(), send.end(), recv.begin() + offset);
      finish(world.all_gather(stream,
                              {view_of(recv.data() + offset, {count}), view_of(recv.data(), {total}), "in"}),
             stream);
      expect_bits(recv, want, "all_gather in place");
    }
    Values<T> send, recv(static_cast<size_t>(total)), want;
    for (int q = 0; q < n; ++q) {
      Values<T> to = data_of<T>(r * 100 + q, count), from = data_of<T>(q * 100 + r, count);
      send.insert(send.end(), to.begin(), to.end());
      want.insert(want.end(), from.begin(), from.end());
    }
    finish(world.all_to_all(stream, {view_of(send.data(), {total}), view_of(recv.data(), {total}), "x"}),
           stream);
    expect_bits(recv, want, "all_to_all");
  }
}

void moves_cases(Communicator& world) {
  gather_and_exchange<float>(world);
  gather_and_exchange<bf16>(world);
  gather_and_exchange<uint8_t>(world);
  gather_and_exchange<int64_t>(world);
}

void nan_wins(Communicator& world) {
  if (world.transport() == "nccl") return;  // it compares as the hardware does
  Stream stream = stream_for(world);
  Values<float> x(5, static_cast<float>(world.rank()));
  x[static_cast<size_t>(world.rank()) % 5] = std::numeric_limits<float>::quiet_NaN();
  finish(world.all_reduce(stream, {.send = view_of(x.data(), {5}), .op = ReduceOp::max, .label = "x"}),
         stream);
  for (int i = 0; i < std::min(5, world.size()); ++i)
    expect(std::isnan(x[static_cast<size_t>(i)]), "a NaN was lost in max");
}

void point_to_point(Communicator& world) {
  Stream stream = stream_for(world);
  int n = world.size(), r = world.rank();
  if (n == 1) return;
  for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{70001}}) {  // around the ring, both ways at once
    int next = (r + 1) % n, previous = (r + n - 1) % n;
    Values<float> right = data_of<float>(r, count), left = data_of<float>(r + 50, count);
    Values<float> from_left(right.size()), from_right(right.size());
    Group group(world);
    world.send(stream, {view_of(right.data(), {count}), next, "right"});
    world.recv(stream, {view_of(from_left.data(), {count}), previous, "right"});
    world.send(stream, {view_of(left.data(), {count}), previous, "left"});
    world.recv(stream, {view_of(from_right.data(), {count}), next, "left"});
    finish(group.end(), stream);
    expect_bits(from_left, data_of<float>(previous, count), "ring to the right");
    expect_bits(from_right, data_of<float>(next + 50, count), "ring to the left");
  }
  // A chain without groups: several messages between one pair arrive in order.
  for (int64_t count : {int64_t{5}, int64_t{3000}}) {
    Values<float> x(static_cast<size_t>(count)), y(static_cast<size_t>(count));
    if (r > 0) {
      finish(world.recv(stream, {view_of(x.data(), {count}), r - 1, "first"}), stream);
      finish(world.recv(stream, {view_of(y.data(), {count}), r - 1, "second"}), stream);
      expect_bits(x, data_of<float>(7, count), "chain, first");
      expect_bits(y, data_of<float>(8, count), "chain, second");
    } else {
      x = data_of<float>(7, count), y = data_of<float>(8, count);
    }
    if (r + 1 < n) {
      Request first = world.send(stream, {view_of(x.data(), {count}), r + 1, "first"});
      finish(world.send(stream, {view_of(y.data(), {count}), r + 1, "second"}), stream);
      finish(first, stream);
    }
  }
}

void groups_of_everything(Communicator& world) {
  Stream stream = stream_for(world);
  int n = world.size(), r = world.rank();
  constexpr int64_t kCount = 30011;
  Values<float> sum = data_of<float>(r, kCount), gathered(static_cast<size_t>(n * kCount));
  Values<bf16> scatter = data_of<bf16>(r, n * kCount), block(static_cast<size_t>(kCount));
  Values<float> mine = data_of<float>(r + 20, kCount);
  Values<int64_t> passed = data_of<int64_t>(r, 11), arrived(11);
  Group group(world);
  if (n > 1) world.send(stream, {view_of(passed.data(), {11}), (r + 1) % n, "pass"});
  world.all_gather(
      stream,
      {.send = view_of(mine.data(), {kCount}), .recv = view_of(gathered.data(), {n * kCount}), .label = "g"});
  world.all_reduce(stream, {.send = view_of(sum.data(), {kCount}), .label = "s"});
  world.reduce_scatter(
      stream,
      {.send = view_of(scatter.data(), {n * kCount}), .recv = view_of(block.data(), {kCount}), .label = "r"});
  if (n > 1) world.recv(stream, {view_of(arrived.data(), {11}), (r + n - 1) % n, "pass"});
  finish(group.end(), stream);
  for (int64_t i = 0; i < kCount; ++i) {
    expect(same_bits(sum[static_cast<size_t>(i)], reduced<float>(ReduceOp::sum, n, i)), "sum in a group");
    expect(same_bits(block[static_cast<size_t>(i)], reduced<bf16>(ReduceOp::sum, n, r * kCount + i)),
           "scatter in a group");
  }
  for (int q = 0; q < n; ++q) {
    expect_bits(Values<float>(gathered.begin() + q * kCount, gathered.begin() + (q + 1) * kCount),
                data_of<float>(q + 20, kCount), "gather in a group");
  }
  if (n > 1) expect_bits(arrived, data_of<int64_t>((r + n - 1) % n, 11), "pass in a group");
}

void keeps_program_order(Communicator& world) {
  Stream stream = stream_for(world);
  // Each call reads what the one before wrote, none is waited for but the last: x becomes n^6.
  Values<double> x(2000, 1.0);
  Tensor view = view_of(x.data(), {2000});
  Request last;
  for (int i = 0; i < 6; ++i) last = world.all_reduce(stream, {.send = view, .label = "chain"});
  finish(last, stream);
  expect(x.front() == std::pow(world.size(), 6) && x.back() == x.front(),
         "calls were not carried out in order");
  // Many at once, waited for backwards.
  std::vector<Values<float>> tensors;
  std::vector<Request> requests;
  for (int i = 0; i < 20; ++i) tensors.push_back(data_of<float>(world.rank(), 100 + i));
  for (auto& t : tensors)
    requests.push_back(world.all_reduce(
        stream, {.send = view_of(t.data(), {static_cast<int64_t>(t.size())}), .label = "many"}));
  for (size_t i = requests.size(); i-- > 0;) {
    finish(requests[i], stream);
    expect(same_bits(tensors[i][3], reduced<float>(ReduceOp::sum, world.size(), 3)), "tensor {} of many", i);
  }
}

void splits_move_data(Communicator& world) {
  Stream stream = stream_for(world);
  int n = world.size(), r = world.rank();
  std::vector<int> same_parity, pair;
  for (int q = r % 2; q < n; q += 2) same_parity.push_back(q);
  for (int q = r / 2 * 2; q < std::min(n, r / 2 * 2 + 2); ++q) pair.push_back(q);
  auto outer = world.split("dp_shard", same_parity), inner = world.split("tp", pair),
       again = world.split("tp", pair);
  Values<double> a(3, r), b(3, r), c(3, 1);
  // All in flight at the same time, on three communicators of this rank.
  Request first = outer->all_reduce(stream, {.send = view_of(a.data(), {3}), .label = "a"});
  Request second = inner->all_reduce(stream, {.send = view_of(b.data(), {3}), .label = "b"});
  finish(again->all_reduce(stream, {.send = view_of(c.data(), {3}), .label = "c"}), stream);
  finish(second, stream);
  finish(first, stream);
  double sum_outer = 0, sum_inner = 0;
  for (int q : same_parity) sum_outer += q;
  for (int q : pair) sum_inner += q;
  expect(a[2] == sum_outer && b[2] == sum_inner && c[2] == static_cast<double>(pair.size()),
         "sums along axes are wrong");
}

// A program drawn from one seed on all ranks: shapes, kinds and waiting in every combination.
void random_programs(Communicator& world) {
  Stream stream = stream_for(world);
  int n = world.size(), r = world.rank();
  std::mt19937 draw(42);
  for (int round = 0; round < 40; ++round) {
    int64_t count = draw() % 3000;
    Values<float> x = data_of<float>(r, count * n, round), y(static_cast<size_t>(count * n));
    Values<float> gathered(static_cast<size_t>(count * n));
    bool grouped = draw() % 2, in_place = draw() % 2;
    if (grouped) world.group_begin();
    Request gather = world.all_gather(stream, {.send = view_of(x.data() + r * count, {count}),
                                               .recv = view_of(gathered.data(), {count * n}),
                                               .label = "g"});
    Tensor target = in_place ? Tensor{} : view_of(y.data(), {count * n});
    if (in_place && !grouped) finish(gather, stream);
    Request sum = grouped && in_place
                      ? Request()
                      : world.all_reduce(
                            stream, {.send = view_of(x.data(), {count * n}), .recv = target, .label = "s"});
    if (grouped) world.group_end();
    finish(sum, stream);
    finish(gather, stream);
    const Values<float>& total = in_place ? x : y;
    for (int64_t i = 0; i < count * n; ++i) {
      int owner = static_cast<int>(i / count);
      expect(gathered[static_cast<size_t>(i)] == element<float>(owner, round + i),
             "round {}: gathered {} is wrong", round, i);
      if (grouped && in_place) continue;
      expect(same_bits(total[static_cast<size_t>(i)], reduced<float>(ReduceOp::sum, n, round + i)),
             "round {}: sum {} is wrong", round, i);
    }
  }
}

}  // namespace

const std::vector<Case>& data_cases() {
  static const std::vector<Case> cases = {
      {"all_reduce", all_reduce_cases},        {"reduce_scatter", reduce_scatter_cases},
      {"all_gather, all_to_all", moves_cases}, {"a NaN wins", nan_wins},
      {"send and recv", point_to_point},       {"groups of everything", groups_of_everything},
      {"program order", keeps_program_order},  {"splits move data", splits_move_data},
      {"random programs", random_programs}};
  return cases;
}

}  // namespace ottava::conformance
