#include "apps/decide/binary_fingerprint.h"

#include "core/io/file.h"
#include "parallel/checkpoint/checksum.h"

namespace ottava {

uint64_t binary_fingerprint() { return checkpoint::text_checksum(read_file("/proc/self/exe")); }

}  // namespace ottava
