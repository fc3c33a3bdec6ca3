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
  ///     max(FLOPs / (peak x part) + sums + weights, bytes / (memory rate x part)) + copies + launch,
  /// the peak being its precision's.
  /// The table has the parts; machine.cpp says what a product's tiles and the softmax of attention leave of
  /// them. Only products have the other terms: `sums` where one is divided along its inner dimension,
  /// `weights` where the table has gemm_weights, `copies` where bf16 is widened.
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
