#include "core/buffer.h"

#include "core/cuda/runtime.h"
#include "core/error.h"
#include "tests/support/devices.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

TEST_CASE("pinned memory that the machine does not have is a lack of memory, not a device that failed") {
  if (!has_gpu()) return skip(kNoGpu);
  const Device device{DeviceType::cuda, 0};
  const Stream chosen = stream_on(device);  // by this thread, whatever ran before
  CHECK_THROWS_AS(Buffer::pinned(device, size_t{1} << 60), MemoryError);
  CHECK_THROWS_WITH(Buffer::pinned(device, size_t{1} << 60),
                    Contains("cannot allocate 1152921504606846976 bytes of pinned memory"));
  CHECK(Buffer::pinned(device, 4096).bytes() == 4096);
}

TEST_CASE("a GPU has a buffer's memory back once the buffer is gone") {
  if (!has_gpu()) return skip(kNoGpu);
  constexpr size_t kBytes = size_t{64} << 20, kLittle = kBytes / 8;  // others may use the GPU
  const auto free_bytes = [] { return cuda::memory_info(0).free_bytes; };
  const size_t before = free_bytes();
  {
    const Buffer buffer({DeviceType::cuda, 0}, kBytes);
    CHECK(free_bytes() + kBytes < before + kLittle);
  }
  CHECK(free_bytes() + kLittle > before);
}
