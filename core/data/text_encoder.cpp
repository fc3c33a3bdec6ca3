#include "core/data/text_encoder.h"

#include "core/data/tokenizer/tokenizer.h"
#include "core/error.h"

namespace ottava::data {

TextEncoder make_text_encoder(std::shared_ptr<const Tokenizer> tokenizer, DocumentMarks marks) {
  TextEncoder encoder;
  encoder.vocab_size = tokenizer->vocab_size();
  if (marks.bos) encoder.bos_id = tokenizer->bos_id();
  if (marks.eos) encoder.eos_id = tokenizer->eos_id();
  encoder.bos_is_eos = encoder.bos_id && encoder.bos_id == encoder.eos_id;
  if (encoder.bos_is_eos) encoder.eos_id.reset();
  encoder.fingerprint = fmt::format("{:016x}", tokenizer->fingerprint());
  encoder.encode = [tokenizer = std::move(tokenizer)](std::string_view text, std::vector<int32_t>& ids) {
    tokenizer->encode(text, ids, {.special_text = EncodeOptions::SpecialText::plain});
  };
  return encoder;
}

std::string_view marks_text(const TextEncoder& encoder) {
  if (encoder.bos_is_eos) return "each document begins with BOS, which is also EOS";
  if (encoder.bos_id && encoder.eos_id) return "each document begins with BOS and ends with EOS";
  if (encoder.bos_id) return "each document begins with BOS";
  if (encoder.eos_id) return "each document ends with EOS";
  return "documents are put together without BOS and EOS";
}

}  // namespace ottava::data
