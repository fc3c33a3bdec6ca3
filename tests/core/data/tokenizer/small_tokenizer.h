#pragma once

#include <string>

#include "core/data/tokenizer/byte_level.h"

namespace ottava::test {

/// Parts of a tokenizer.json that tests replace one by one. The vocabulary: byte b has id b, then `more`.
struct SmallTokenizer {
  std::string more = R"(,"he":256,"ll":257,"hell":258,"hello":259)";
  std::string merges = R"(["h e","l l","he ll","hell o"])";
  std::string model_extra;  ///< further members of "model", each with a comma in front
  std::string normalizer = "null";
  std::string pre_tokenizer = R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true})";
  std::string post_processor = "null";
  std::string decoder = R"({"type":"ByteLevel"})";
  std::string added =
      R"([{"id":260,"content":"<s>","special":true},{"id":261,"content":"</s>","special":true}])";
  std::string model_type = R"("type":"BPE",)";

  static std::string bytes_vocab() {
    std::string out;
    for (int b = 0; b < 256; ++b) {
      std::string key = tokenizer::to_byte_level(std::string(1, static_cast<char>(b)));
      if (key == "\"" || key == "\\") key = "\\" + key;
      out += (b ? ",\"" : "\"") + key + "\":" + std::to_string(b);
    }
    return out;
  }
  std::string json() const {
    return R"({"version":"1.0","truncation":null,"padding":{"strategy":"BatchLongest","pad_id":0},"added_tokens":)" +
           added + R"(,"normalizer":)" + normalizer + R"(,"pre_tokenizer":)" + pre_tokenizer +
           R"(,"post_processor":)" + post_processor + R"(,"decoder":)" + decoder + R"(,"model":{)" +
           model_type + R"("dropout":null)" + model_extra + R"(,"vocab":{)" + bytes_vocab() + more +
           R"(},"merges":)" + merges + "}}";
  }
};

}  // namespace ottava::test
