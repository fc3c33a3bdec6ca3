#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace ottava::test {

/// A table of bytes per second on the CPU. Beside each line stands a plain copy of 48 MiB, measured at the
/// same time; for both the best of 25 calls counts. Bytes are those that the operation itself reports on the
/// meta device.
class BandwidthTable {
 public:
  /// Lines whose name does not contain `only` are left out.
  explicit BandwidthTable(std::string only = {});
  /// Prints "name GB/s ms percent of the copy".
  void measure(const std::string& name, const std::function<void(Stream&)>& body);

  /// Memory as the real program has it, with large pages where the system has them; it lives as long as the
  /// table.
  Tensor zeros(DType dtype, Shape shape);
  /// f32 or bf16, uniform in (-1, 1), repeated every 4099 elements.
  Tensor filled(DType dtype, Shape shape);

 private:
  Stream cpu_ = Stream::cpu();
  std::string only_;
  std::vector<std::unique_ptr<Buffer>> memory_;
  Tensor source_, copy_;
  double copy_seconds_ = 1e9;
};

}  // namespace ottava::test
