// Files of training data: the first byte of the input chooses what the rest is, the rest becomes the file.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/data/corpus.h"
#include "core/data/packing.h"
#include "core/data/window_index.h"
#include "core/error.h"
#include "tests/fuzz/accepted.h"
#include "tests/fuzz/written_folder.h"

namespace {

using namespace ottava;
using namespace ottava::data;

// A compressed input of 1 MiB may hold a gigabyte.
constexpr int kMaxSegments = 50;

void read_everything(const std::string& path) {
  Corpus corpus(find_data_files({path}), {.block_bytes = 1000, .max_text_bytes = 100});
  TextEncoder encoder{
      .encode = [](std::string_view text,
                   std::vector<int32_t>& ids) { ids.insert(ids.end(), text.begin(), text.end()); },
      .vocab_size = 200'000};  // llm.c's documents begin with 50256 or 128000
  DocumentEncoder documents(corpus, encoder, "text");
  Segment segment;
  std::string scratch;
  int segments = 0;
  for (int64_t block = 0; block < corpus.blocks(); ++block) {
    for (BlockReader reader(corpus, block); !reader.finished();) {
      if (++segments > kMaxSegments) return;
      reader.next(segment);
      for (const Document& document : segment.documents) {
        std::vector<int32_t> tokens;
        documents.append(segment, document, tokens, scratch);
        test::is_accepted = true;
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static test::WrittenFolder folder;
  if (size < 2) return 0;
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0]) {
      case 'o': {
        // Without a good header checksum nothing behind the header would ever be reached.
        constexpr size_t kAt = offsetof(ShardHeader, header_checksum);
        if (bytes.size() >= sizeof(ShardHeader)) {
          uint64_t checksum = XXH64(bytes.data(), kAt, 0);
          std::memcpy(bytes.data() + kAt, &checksum, 8);
        }
        read_everything(folder.write("ottava.txt", bytes));
        break;
      }
      case 'l':
        read_everything(folder.write("llmc.bin", bytes));
        break;
      case 'm': {
        // The .idx first, its length in front.
        uint16_t length = 0;
        std::memcpy(&length, bytes.data(), std::min<size_t>(bytes.size(), 2));
        std::string_view rest = std::string_view(bytes).substr(std::min<size_t>(bytes.size(), 2));
        folder.write("pair.idx", rest.substr(0, length));
        read_everything(folder.write("pair.bin", rest.substr(std::min<size_t>(length, rest.size()))));
        break;
      }
      case 'g':
        read_everything(folder.write("a.jsonl.gz", bytes));
        break;
      case 'z':
        read_everything(folder.write("a.txt.zst", bytes));
        break;
      case 'j':
        read_everything(folder.write("a.jsonl", bytes));
        break;
      case 't':
        read_everything(folder.write("a.txt", bytes));
        break;
      case 'i': {
        // Likewise the checksum at the end of an index.
        if (bytes.size() >= 8) {
          uint64_t checksum = XXH64(bytes.data(), bytes.size() - 8, 0);
          std::memcpy(bytes.data() + bytes.size() - 8, &checksum, 8);
        }
        folder.write("windows-0000000000000001.idx", bytes);
        test::is_accepted = WindowIndex(folder.path, 1, 8, IndexAccess::read_only).total().windows > 0;
        break;
      }
    }
  } catch (const Error&) {
    test::is_accepted = false;
  }
  return 0;
}
