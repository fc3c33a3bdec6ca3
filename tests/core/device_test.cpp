#include "core/device.h"

#include <string>

#include "core/error.h"
#include "tests/support/catch.h"

using namespace ottava;

TEST_CASE("a device is read from its name, and other text is refused") {
  CHECK((parse_device("cpu") == Device{DeviceType::cpu, 0}));
  CHECK(parse_device("auto").type == (cuda_device_count() > 0 ? DeviceType::cuda : DeviceType::cpu));
  CHECK_THROWS_AS(parse_device("cuda:1000000"), DeviceError);  // a device, but none of this machine
  for (const char* text : {"gpu", "GPU", "gpu:1"})
    CHECK_THROWS_WITH(parse_device(text),
                      "[device] '" + std::string(text) +
                          "' is not a device: expected auto, cpu, cuda or cuda:N; did you mean cuda?");
  for (const char* text : {"meta", "cuda:", "cuda:x", "cuda:-1", ""}) {
    INFO("'" << text << "'");
    CHECK_THROWS_AS(parse_device(text), ConfigError);
    CHECK_THROWS_WITH(parse_device(text), "[device] '" + std::string(text) +
                                              "' is not a device: expected auto, cpu, cuda or cuda:N");
  }
}
