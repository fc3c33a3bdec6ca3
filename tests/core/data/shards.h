#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/data/shard_writer.h"
#include "tests/core/data/fixture.h"

namespace ottava::data::test {

using Tokens = std::vector<std::vector<int32_t>>;

inline void write_ottava(const std::string& path, const TextEncoder& encoder, const Tokens& documents) {
  ShardWriter writer(path, encoder);
  for (const auto& document : documents) writer.append(document);
  writer.finish();
}

template <class Id>
std::string llmc(int32_t magic, int32_t version, const Tokens& documents) {
  std::string tokens;
  int32_t count = 0;
  for (const auto& document : documents) {
    for (int32_t id : document) put(tokens, static_cast<Id>(id)), ++count;
  }
  std::string header;
  for (int32_t value : {magic, version, count}) put(header, value);
  header.resize(1024);
  return header + tokens;
}

struct MegatronPair {
  std::string bin, idx;
};
/// One sequence per document; type 8 is uint16, type 4 int32.
inline MegatronPair megatron(uint8_t type, const Tokens& documents) {
  MegatronPair pair;
  std::string lengths, pointers, table;
  put(table, int64_t{0});
  for (size_t d = 0; d < documents.size(); ++d) {
    put(lengths, static_cast<int32_t>(documents[d].size()));
    put(pointers, static_cast<int64_t>(pair.bin.size()));
    put(table, static_cast<int64_t>(d + 1));
    for (int32_t id : documents[d]) {
      if (type == 8)
        put(pair.bin, static_cast<uint16_t>(id));
      else
        put(pair.bin, id);
    }
  }
  pair.idx = std::string("MMIDIDX\0\0", 9);
  put(pair.idx, uint64_t{1});
  put(pair.idx, type);
  put(pair.idx, static_cast<uint64_t>(documents.size()));
  put(pair.idx, static_cast<uint64_t>(documents.size() + 1));
  pair.idx += lengths + pointers + table;
  return pair;
}

}  // namespace ottava::data::test
