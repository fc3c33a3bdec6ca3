// Safetensors headers, indexes and manifests from untrusted bytes: Error or a valid result, nothing else.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/io/safetensors.h"
#include "core/io/safetensors_folder.h"
#include "core/io/tensor_rectangle.h"
#include "models/hf_config.h"
#include "parallel/checkpoint/checksum.h"
#include "parallel/checkpoint/manifest.h"
#include "tests/fuzz/accepted.h"

namespace {

using namespace ottava;

// What a parser accepts must hold: tensors inside the data, one after another, of the size that their shape
// says.
void check(const SafetensorsHeader& header) {
  int64_t end = 0;
  for (const SafetensorsEntry& entry : header.tensors) {
    if (entry.begin != end || entry.end < entry.begin || entry.numel() < 0 || entry.rows() < 0) std::abort();
    if (entry.rows() * entry.columns() != entry.numel()) std::abort();
    end = entry.end;
  }
  if (end != header.data_bytes) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  test::attempt([&] {
    auto file_bytes = static_cast<int64_t>(size);
    int64_t length = parse_safetensors_length(bytes.substr(0, 8), file_bytes, "fuzz");
    check(parse_safetensors_header(bytes.substr(8, static_cast<size_t>(length)), file_bytes - 8 - length,
                                   "fuzz"));
  });
  test::attempt([&] { parse_safetensors_index(bytes, "fuzz"); });
  // A manifest's own checksum would hide what lies behind it: seal whatever comes.
  std::string sealed(bytes);
  sealed += fmt::format("  \"xxh64\": \"{}\"\n}}\n", checkpoint::to_hex(checkpoint::text_checksum(bytes)));
  test::attempt([&] { checkpoint::parse_manifest(sealed, "fuzz"); });
  test::attempt([&] { to_json(parse_hf_config(bytes, "fuzz")); });
  return 0;
}
