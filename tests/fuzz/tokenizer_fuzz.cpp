// Input: tokenizer.json, a NUL byte, tokenizer_config.json (both may be missing). What loads must encode
// anything, and its ids must be in the vocabulary.
#include <cstdint>
#include <cstdlib>

#include "core/data/tokenizer/tokenizer.h"
#include "core/error.h"
#include "tests/fuzz/accepted.h"

namespace {

constexpr std::string_view kText =
    "Hello hell <s>, it's 1234 \t\n\r\n caf\xc3\xa9 e\xcc\x81\xcc\xa3 \xe4\xb8\x80\xf0\x9f\x98\x80 "
    "\xff\xc3\xe2\x82</s> word ";

void use(const ottava::Tokenizer& tokenizer, std::string_view text) {
  auto ids = tokenizer.encode(text, {.add_bos = true, .add_eos = true});
  for (int32_t id : ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
  }
  tokenizer.decode(ids);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  size_t end = std::min(input.find('\0'), size);
  std::string_view config = input.substr(std::min(end + 1, size));
  try {
    auto tokenizer = ottava::Tokenizer::parse(input.substr(0, end), config, "fuzz");
    ottava::test::is_accepted = true;
    use(*tokenizer, kText);
    use(*tokenizer, input.substr(0, 200));
    tokenizer->describe();
  } catch (const ottava::Error&) {
  }
  return 0;
}
