// What a run keeps beside its tensors and what a plan reads: decisions.json, training_state.json, and
// measured operations. What is accepted can be written and read again as the same.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "apps/config/decisions.h"
#include "apps/devices/device_table.h"
#include "apps/predict/measured_operations.h"
#include "apps/step/training_state.h"
#include "core/error.h"
#include "tests/fuzz/accepted.h"
#include "tests/fuzz/written_folder.h"

namespace {

using namespace ottava;

// `parse` gives an Error or something that stays as it is.
template <class Parse>
void round_trip(std::string_view text, Parse parse) {
  decltype(parse(text, "fuzz")) parsed;
  try {
    parsed = parse(text, "fuzz");
  } catch (const Error&) {
    return;
  }
  test::is_accepted = true;
  if (!(parse(to_json(parsed), "fuzz") == parsed)) std::abort();  // an Error here ends the run too
}

void predict(const MeasuredOperations& measured) {
  for (const double flops : {1.0, 1e9, 1e18}) {
    RecordedOperation operation{.op = "matmul"};
    operation.precision = Precision::bf16;
    operation.flops = flops;
    const std::optional<PredictedTime> time = measured.find(operation);
    if (time && !(time->seconds >= 0 && std::isfinite(time->seconds))) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static test::WrittenFolder folder;
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0]) {
    case 'd':
      round_trip(rest, parse_decisions);
      break;
    case 's':
      round_trip(rest, parse_training_state);
      break;
    case 'm':
      test::attempt([&] {
        MeasuredOperations measured;
        measured.add(rest, "fuzz");
        predict(measured);
      });
      break;
    case 't':
      test::attempt([&] { find_device(folder.write("device.yaml", rest)); });
      break;
    case 'n':
      test::attempt([&] { find_network(folder.write("network.yaml", rest)); });
      break;
  }
  return 0;
}
