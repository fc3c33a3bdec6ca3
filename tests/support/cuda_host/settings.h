#pragma once

#include <cstdint>
#include <set>
#include <vector>

namespace ottava::cuda_host {

/// Order in which runnable threads of a block, and the blocks of a grid, are taken.
enum class Order { forward, reverse, random };
/// When work enqueued on a stream runs: at once if it can; as late as waiting allows; or by chance.
enum class Streams { eager, lazy, random };
/// When a collective moves its data: as soon as streams come to it; when nothing else is left to do (a slow
/// network); or, of each GPU, one after the other in the order in which its host made them, whatever their
/// streams: as where the multiprocessors do not suffice for two of NCCL's kernels.
enum class Collectives { prompt, late, in_order };
/// When a copy from pageable host memory reads it: before the call returns, or, as a driver may, when the
/// stream comes to it.
enum class Pageable { staged, late };
/// What the machine has: a driver with GPUs, none, one of CUDA 11.4, or one without GPUs.
enum class Driver { good, none, old, without_gpus };

/// From the environment at first use; a test may change it between launches.
///     OTTAVA_CUDA_HOST_ORDER=forward|reverse|random:SEED
///     OTTAVA_CUDA_HOST_STREAMS=eager|lazy|random
///     OTTAVA_CUDA_HOST_COLLECTIVES=prompt|late|in_order
///     OTTAVA_CUDA_HOST_PAGEABLE=staged|late
///     OTTAVA_CUDA_HOST_DRIVER=good|none|old|without_gpus
///     OTTAVA_CUDA_HOST_CAPABILITY=90    the GPU's, by which cuBLASLt takes or refuses scale modes
struct Settings {
  Order order = Order::forward;
  Streams streams = Streams::eager;
  Collectives collectives = Collectives::prompt;
  Pageable pageable = Pageable::staged;
  Driver driver = Driver::good;
  uint64_t seed = 1;
  int capability = 90;
  /// A bit for each algorithm that cuBLASLt proposes: those it marks as not to be used, and those that fail
  /// when run.
  unsigned unusable_algorithms = 0, failing_algorithms = 0;
};
Settings& settings();

/// maxCTAs of the NCCL communicators that were not destroyed, as they were made; 0: none was given.
std::vector<int> nccl_cta_limits();
/// What a stream of the highest priority has; others have 0.
constexpr int kHighestPriority = -5;
/// Of the streams on which NCCL's calls were made since the last call of this.
std::set<int> nccl_stream_priorities();
/// The SMs that each product since the last call was asked to make do with; 0: all.
std::vector<int> matmul_sm_counts();
/// Products that ran since the last call with an operand that was all zeros or not finite.
int matmuls_on_dull_numbers();
/// The next NCCL communicator that is made reports this while it connects.
void break_next_connection(const char* reason);
/// Every NCCL communicator reports an error from now on: one of those that NCCL has where a rank is gone.
enum class Breakage { remote, system, internal };
void break_network(Breakage breakage = Breakage::remote);

/// xorshift64*: the layer's own, so that no test's random numbers move.
uint64_t next_random();

}  // namespace ottava::cuda_host
