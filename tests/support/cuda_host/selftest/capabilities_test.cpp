// GPUs of other compute capabilities: what they lack, and that kernels do with what they have.
#include "core/ops/attention/attention_kernels.h"
#include "tests/core/ops/attention/attention_problem.h"
#include "tests/support/cuda_host/selftest/fixture.h"

using namespace ottava;
using namespace ottava::cuda;
using namespace ottava::test;

namespace {

/// Everything that attention computes, forward and backward.
std::vector<float> attention_on(int capability, const attention::Case& c, bool documents) {
  const int before = std::exchange(cuda_host::settings().capability, capability);
  Stream stream = Stream::cuda(0);
  attention::Problem problem(stream, DType::bf16, c, normal_values(c.tokens() * c.layout().row(), 1),
                             documents);
  problem.dout.upload(normal_values(c.tokens() * c.heads * c.head_dim, 2));
  problem.forward(stream);
  problem.backward(stream);
  std::vector<float> all = problem.out.floats();
  for (const DeviceBuffer* part : {&problem.lse, &problem.dqkv}) {
    const std::vector<float> values = part->floats();
    all.insert(all.end(), values.begin(), values.end());
  }
  cuda_host::settings().capability = before;
  return all;
}

__global__ void touch_nothing() {}

}  // namespace

TEST_CASE("a block gets the shared memory that the GPU has, and no more") {
  Stream stream = Stream::cuda(0);
  const int before = cuda_host::settings().capability;
  for (auto [capability, most] :
       {std::pair{80, 166912}, {86, 101376}, {89, 101376}, {90, 232448}, {100, 232448}}) {
    INFO("capability " << capability);
    cuda_host::settings().capability = capability;
    const size_t bytes = static_cast<size_t>(most);
    CHECK(shared_bytes_per_block(0) == most);
    launch("touch", stream, {.grid = 1, .block = 32, .shared_bytes = bytes}, touch_nothing);
    CHECK(contains(failure_of(stream,
                              [&] {
                                launch("touch", stream, {.grid = 1, .block = 32, .shared_bytes = bytes + 16},
                                       touch_nothing);
                              }),
                   fmt::format("only dynamic shared memory up to {} bytes can be set", most)));
  }
  cuda_host::settings().capability = before;
  stream.synchronize();
}

TEST_CASE("attention with heads of 128 has the same bits where a block may hold half as many queries") {
  const attention::Case c{1, 2, 1, 128, 200};
  for (bool documents : {false, true}) {
    const std::vector<float> large = attention_on(90, c, documents), small = attention_on(89, c, documents);
    REQUIRE(large.size() == small.size());
    CHECK(std::memcmp(large.data(), small.data(), large.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("more items than a grid has in y and z come in several launches") {
  std::vector<std::pair<int64_t, unsigned>> grids;
  for_each_grid(2 * kMostInYZ + 1,
                [&](int64_t first, unsigned extent) { grids.emplace_back(first, extent); });
  CHECK(grids == std::vector<std::pair<int64_t, unsigned>>{{0, 65535}, {65535, 65535}, {131070, 1}});
  CHECK_THROWS_WITH(grid_of_yz(kMostInYZ + 1), Catch::Contains("65536 blocks along y or z of one launch"));
}

TEST_CASE("a GPU that this program was not compiled for is refused before anything runs there") {
  const int before = std::exchange(cuda_host::settings().capability, 75);
  CHECK_THROWS_WITH(
      Stream::cuda(2),
      "[cuda] GPU 2 (host execution layer) has compute capability 7.5, and this program's kernels, compiled "
      "for 8.0, do not run there (no kernel image is available for execution on the device): they need 8.0 "
      "or later, or set training.device to cpu");
  cuda_host::settings().capability = 80;
  CHECK_NOTHROW(Stream::cuda(2));
  cuda_host::settings().capability = before;
}
