#pragma once

#include <string>

#include "apps/predict/device_table.h"
#include "apps/predict/measured_operations.h"
#include "apps/predict/predicted_time.h"
#include "core/cost.h"

namespace ottava {

/// What an operation does with a device: "products bf16", "attention", "quantize", "optimizer", "loss",
/// "elementwise".
std::string class_of(const RecordedOperation& operation);

/// Devices, how they are connected, and what was measured on one of them.
struct Machine {
  DeviceTable device;
  NetworkTable network;
  int ranks_per_node = 8;
  bool has_cudnn_attention = false;
  MeasuredOperations measured = {};

  /// Of one call. Measured or interpolated where `measured` has operations of its kind, else
  ///     max(FLOPs / (peak of its precision x part of it), bytes / (memory rate x part of it)) + launch,
  /// where a product gets the table's part x tiles / (waves x SMs) x k / (k + 256), of tiles 128 x 256, and
  /// attention narrower than 128 gets (width / 128)^0.4 of the table's.
  PredictedTime time_of(const RecordedOperation& operation) const;
  /// Seconds of n ranks, r of them on each of k machines, for x sent bytes of whole vectors of S bytes:
  ///     max(x / link, S / (r x adapter x its part) x fabric) + base + hops within + hops between machines,
  /// an all-reduce twice the second and all hops. Messages are a transfer of two ranks, of what goes one way.
  /// Nothing among ranks of one.
  double seconds_of(const RecordedTransfer& transfer) const;
};

}  // namespace ottava
