#pragma once

#include <string>

#include "apps/devices/device_table.h"
#include "apps/predict/measured_operations.h"
#include "apps/predict/predicted_time.h"
#include "core/cost.h"

namespace ottava {

/// The class of an operation: "products bf16", "attention", "quantize", "optimizer", "loss" or "elementwise".
std::string class_of(const RecordedOperation& operation);

/// Devices, how they are connected, and what was measured on one of them.
struct Machine {
  DeviceTable device;
  NetworkTable network;
  int ranks_per_node = 8;
  bool has_cudnn_attention = false;
  int nccl_channels = 0;     ///< of each communicator; 0: ranks do not communicate over NCCL
  bool widens_bf16 = false;  ///< of a CPU: bf16 operands of products are copied to f32 first
  /// Of a CPU: memory's rate where what is written was read before, as by AdamW. A copy, whose rate is the
  /// device's, also reads the lines that it writes. 0: the device's.
  double update_gb_per_s = 0;
  MeasuredOperations measured = {};

  /// Time of one call. Measured or interpolated if `measured` has operations of its kind, else
  ///     max(FLOPs / (peak of its precision x part of it), bytes / (memory rate x part of it)) + launch,
  /// where the part of a product is the table's x tiles / (waves x SMs) x k / (k + 256), with tiles of 128 x
  /// 256; one of fewer tiles than SMs is divided along its inner dimension k into as many parts as make it
  /// fastest, whose f32 sums are written and read at twice the memory's rate. The part of attention by our
  /// kernels is the table's, but at most what its exponentials allow, 0.45 x 4 (backward 5) width / 16 x FP32
  /// peak / peak; that by cuDNN the table's x (width / 128)^0.45, of 64 for narrower heads, x width / 64 for
  /// these; but where the table says what softmax costs, 1 / (1 / the table's + softmax / width x peak / FP32
  /// peak). A CPU's attention multiplies whole tiles at the diagonal: (min(128, T) - 1) / (T + 1) more than
  /// is seen. Where the table has gemm_weights, a product's weights are read, or their gradient is added to,
  /// beside multiplying and not at the same time: for few tokens this is most of it. With widens_bf16,
  /// copying a bf16 product's operands comes before it, in place of reading weights: 6 bytes of an element /
  /// (memory rate x part of it).
  PredictedTime time_of(const RecordedOperation& operation) const;
  /// Seconds of a transfer of n ranks, r of them on each of k machines, for x sent bytes of whole vectors of
  /// S bytes:
  ///     max(x / link, S / (r x adapter x its part) x fabric) + base + hops within + hops between machines.
  /// An all-reduce takes twice the second term and all hops. Of an all-to-all the second term is
  ///     S (n - r) / n / (adapter x its part) x fabric,
  /// what a rank itself sends to other machines. Messages are such an exchange, counted one way: of two ranks
  /// in a pipeline and with tensor parallel, of all ranks elsewhere (Muon). A single rank takes no time.
  double seconds_of(const RecordedTransfer& transfer) const;
};

}  // namespace ottava
