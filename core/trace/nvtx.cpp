#include "core/trace/nvtx.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

namespace ottava::nvtx {
bool available() { return true; }
void push(const std::string& label) { nvtxRangePushA(label.c_str()); }
void pop() { nvtxRangePop(); }
}  // namespace ottava::nvtx
#else
namespace ottava::nvtx {
bool available() { return false; }
void push(const std::string&) {}
void pop() {}
}  // namespace ottava::nvtx
#endif
