#pragma once

#include <string>

/// Ranges of the calling thread for NVIDIA's tools; they do nothing where no tool listens. NVTX 3 is headers
/// only.
namespace ottava::nvtx {

/// Whether the program was built with NVTX.
bool available();
/// Begins and ends a range; ranges nest. Both do nothing where NVTX is not available.
void push(const std::string& label);
void pop();

}  // namespace ottava::nvtx
