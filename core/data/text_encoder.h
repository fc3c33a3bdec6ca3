#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ottava::data {

/// What the loader needs of a tokenizer. `encode` appends the ids of a text, without BOS and EOS; it is called from
/// several threads at once.
struct TextEncoder {
  std::function<void(std::string_view text, std::vector<int32_t>& ids)> encode;
  int32_t vocab_size = 0;
  std::optional<int32_t> bos_id, eos_id;  ///< put around each document of text; documents of shards have theirs already
  std::string fingerprint;
};

}  // namespace ottava::data
