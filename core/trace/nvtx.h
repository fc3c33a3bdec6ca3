#pragma once

#include <string>

/// Ranges of the calling thread for NVIDIA's tools, which do nothing where no tool listens. NVTX 3 is headers
/// only.
namespace ottava::nvtx {

/// Whether the program was built with NVTX.
bool available();
/// Ranges nest. Nothing where NVTX is not available.
void push(const std::string& label);
void pop();

}  // namespace ottava::nvtx
