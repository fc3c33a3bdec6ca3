// A tool for NVTX as Nsight Systems is one, loaded by NVTX_INJECTION64_PATH: writes a line for each range of
// the calling process into the file that OTTAVA_NVTX_FILE names, "push LABEL" and "pop".

#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>

namespace {

std::FILE* file() {
  static std::FILE* const opened = std::fopen(std::getenv("OTTAVA_NVTX_FILE"), "w");
  return opened;
}

int push(const char* label) { return std::fprintf(file(), "push %s\n", label) > 0 ? 0 : -1; }
int pop() { return std::fputs("pop\n", file()) >= 0 ? 0 : -1; }

template <class Function>
NvtxFunctionPointer pointer_to(Function* function) {
  return reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_export_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0 ||
      size <= NVTX_CBID_CORE_RangePop || file() == nullptr)
    return 0;
  *table[NVTX_CBID_CORE_RangePushA] = pointer_to(push);
  *table[NVTX_CBID_CORE_RangePop] = pointer_to(pop);
  return 1;
}
