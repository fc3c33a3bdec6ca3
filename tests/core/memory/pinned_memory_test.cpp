#include "core/buffer.h"
#include "core/error.h"
#include "tests/support/devices.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

TEST_CASE("pinned memory that the machine does not have is a lack of memory, not a device that failed") {
  if (!has_gpu()) return skip(kNoGpu);
  const Device device{DeviceType::cuda, 0};
  CHECK_THROWS_AS(Buffer::pinned(device, size_t{1} << 60), MemoryError);
  CHECK_THROWS_WITH(Buffer::pinned(device, size_t{1} << 60),
                    Contains("cannot allocate 1152921504606846976 bytes of pinned memory"));
  CHECK(Buffer::pinned(device, 4096).bytes() == 4096);
}
