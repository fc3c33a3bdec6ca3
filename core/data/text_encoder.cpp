#include "core/data/text_encoder.h"

#include "core/data/tokenizer/tokenizer.h"
#include "core/error.h"

namespace ottava::data {

TextEncoder make_text_encoder(std::shared_ptr<const Tokenizer> tokenizer, DocumentMarks marks) {
  TextEncoder encoder;
  encoder.vocab_size = tokenizer->vocab_size();
  if (marks.bos) encoder.bos_id = tokenizer->bos_id();
  if (marks.eos) encoder.eos_id = tokenizer->eos_id();
  encoder.fingerprint = fmt::format("{:016x}", tokenizer->fingerprint());
  encoder.encode = [tokenizer = std::move(tokenizer)](std::string_view text, std::vector<int32_t>& ids) {
    tokenizer->encode(text, ids, {.special_text = EncodeOptions::SpecialText::plain});
  };
  return encoder;
}

}  // namespace ottava::data
