#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ottava::data {

/// What a file of data holds. Fingerprints in checkpoints contain these numbers: a new format takes the next.
enum class Format : uint8_t {
  text = 0,            ///< plain text; `<|endoftext|>` separates documents
  json_lines = 1,      ///< one JSON object per line, the document is the string under one key
  ottava_shard = 2,    ///< written by `ottava data prepare`
  llmc_shard = 3,      ///< llm.c: 1024-byte header, then u16 (GPT-2) or u32 (Llama 3) tokens
  megatron_shard = 4,  ///< Megatron-LM: tokens in .bin, document table in the .idx beside it
  tokens_u16 = 5,      ///< nothing but u16 token ids (nanoGPT's train.bin), where the user says so
  tokens_u32 = 6,      ///< the same with u32
};
/// What it is called in messages.
std::string_view name_of(Format format);
/// Whether files hold token ids, not text.
bool is_tokenized(Format format);
/// Whether they hold nothing else, so that only the reader's pieces are known as documents.
bool is_bare(Format format);
/// Formats that a user may name: auto (each file's own), text, json_lines, tokens_u16, tokens_u32, and for
/// JSON lines of conversations messages, sharegpt, prompt_completion (core/data/chat/conversation.h).
const std::vector<std::string>& format_names();
/// The format of this name; nothing for auto. Throws ConfigError for an unknown name.
std::optional<Format> format_named(std::string_view name);

}  // namespace ottava::data
