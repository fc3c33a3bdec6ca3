#pragma once

namespace ottava::cuda {

/// Throws DeviceError, saying what to do, if this program has no kernels for the GPU, which is the thread's
/// current device: it was compiled for others, or the driver cannot translate what it has.
void require_own_kernels(int device);

}  // namespace ottava::cuda
