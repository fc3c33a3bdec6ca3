#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/data/tokenizer/definition.h"
#include "core/data/tokenizer/definition_file.h"

namespace ottava::tokenizer {

/// Reads the tokens of a definition: the model's vocabulary and merges, added tokens, and their ids.
class VocabularyReader : protected DefinitionFile {
 public:
  using DefinitionFile::DefinitionFile;

 protected:
  void read_model(const Json& model);
  void read_added(const Json& file, const Json& config);
  /// Special tokens by the names that tokenizer_config.json and special_tokens_map.json give them. Those of
  /// the vocabulary are added ones from then on.
  void read_named(const Json& config, const Json& map);
  /// To be called after these: checks that ids have no gaps, and sets the bytes of each.
  void check_ids();
  /// The token with this name ("bos_token"); empty if none has it.
  std::string named(const std::string& name) const;
  /// The token's id; -1 for an empty token. Refuses a token that does not exist.
  int32_t id_of(const std::string& token, std::string_view role) const;

  TokenizerDefinition d_;

 private:
  void place(const std::string& key, int32_t at);
  void decode_keys();
  std::pair<std::string, bool> bytes_of(const std::string& key) const;
  void read_merges(const Json& merges);
  void add(const Json& entry, const Json& at);
  void read_names(const Json& object, const std::string& file);
  void name_token(const std::string& name, const Json& token, const std::string& file);

  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<int32_t, std::string> keys_;
  std::unordered_map<int32_t, size_t> added_at_;  ///< places in d_.added by id
  std::unordered_map<std::string, std::string> named_;
  std::unordered_map<int32_t, std::pair<std::string, bool>> model_bytes_;  ///< and whether BPE can make them
};

}  // namespace ottava::tokenizer
