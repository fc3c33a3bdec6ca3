#pragma once

#include <cstdint>

namespace ottava::cuda_host {

/// Order in which runnable threads of a block, and the blocks of a grid, are taken.
enum class Order { forward, reverse, random };
/// When work enqueued on a stream runs: at once if it can; as late as waiting allows; or by chance.
enum class Streams { eager, lazy, random };

/// From the environment at first use; a test may change it between launches.
///     OTTAVA_CUDA_HOST_ORDER=forward|reverse|random:SEED     OTTAVA_CUDA_HOST_STREAMS=eager|lazy|random
struct Settings {
  Order order = Order::forward;
  Streams streams = Streams::eager;
  uint64_t seed = 1;
};
Settings& settings();

/// xorshift64*: the layer's own, so that no test's random numbers move.
uint64_t next_random();

}  // namespace ottava::cuda_host
