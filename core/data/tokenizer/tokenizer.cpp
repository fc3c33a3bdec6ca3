#include "core/data/tokenizer/tokenizer.h"

#include <xxhash.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "core/data/tokenizer/added_token_matcher.h"
#include "core/data/tokenizer/bpe.h"
#include "core/data/tokenizer/definition.h"
#include "core/data/tokenizer/oniguruma.h"
#include "core/data/tokenizer/pretokenizer.h"
#include "core/data/tokenizer/split_patterns.h"
#include "core/data/tokenizer/unicode.h"
#include "core/error.h"
#include "core/io/attempts.h"
#include "core/io/file.h"
#include "core/io/folder.h"
#include "core/text/counted.h"

namespace ottava {
namespace {

using namespace tokenizer;

constexpr int64_t kMaxFileBytes = int64_t{256} << 20;

uint64_t fingerprint_of(const TokenizerDefinition& d) {
  std::string all;
  auto number = [&](int64_t n) {
    for (int i = 0; i < 8; ++i) all.push_back(static_cast<char>(static_cast<uint64_t>(n) >> (8 * i)));
  };
  auto text = [&](std::string_view s) {
    number(std::ssize(s));
    all.append(s);
  };
  for (size_t i = 0; i < d.tokens.size(); ++i) text(d.tokens[i]), number(d.reachable[i]);
  for (const Merge& m : d.merges) number(m.left), number(m.right), number(m.result);
  for (const AddedToken& t : d.added) {
    text(t.content);
    for (int64_t n : {int64_t{t.id}, int64_t{t.special}, int64_t{t.normalized}, int64_t{t.lstrip},
                      int64_t{t.rstrip}, int64_t{t.single_word}}) {
      number(n);
    }
  }
  for (const SplitStep& s : d.steps) {
    text(s.regex), number(s.literal), number(s.add_prefix_space);
    // Shards and checkpoints of versions that read it as PCRE2 does have other ids.
    if (!s.literal && tokenizer::needs_oniguruma(s.regex)) text("oniguruma");
    if (!s.literal && tokenizer::names_scripts(s.regex)) text("scripts");
  }
  for (int64_t n : {int64_t{d.nfc}, int64_t{d.ignore_merges}, int64_t{d.bos_id}, int64_t{d.eos_id}})
    number(n);
  return XXH64(all.data(), all.size(), 0);
}

// Of those that are not added, which are found without merges.
int64_t tokens_never_made(const TokenizerDefinition& d) {
  std::vector<bool> is_made(d.tokens.size(), d.ignore_merges);
  for (const Merge& m : d.merges) is_made[m.result] = true;
  for (size_t id = 0; id < d.tokens.size(); ++id) {
    if (d.tokens[id].size() == 1) is_made[id] = true;
    if (!d.reachable[id]) is_made[id] = false;
  }
  for (const AddedToken& token : d.added) is_made[token.id] = true;
  return std::ranges::count(is_made, false);
}

enum class FoundIn { text, normalized_text };

std::vector<AddedToken> added_tokens(const TokenizerDefinition& d, FoundIn where) {
  const bool normalized = where == FoundIn::normalized_text;
  std::vector<AddedToken> out;
  for (AddedToken token : d.added) {
    if (token.normalized != normalized) continue;
    std::string content;
    if (normalized && d.nfc) token.content = std::string(in_nfc(token.content, content));
    out.push_back(token);
  }
  return out;
}

std::optional<int32_t> known(int32_t id) { return id < 0 ? std::nullopt : std::optional(id); }

/// Everything one call of encode() writes to besides its output.
struct Workspace {
  Bpe::Scratch bpe;
  Pattern::Scratch pattern;
  std::vector<AddedTokenMatcher::Piece> pieces, inner_pieces;
};

/// Workspaces that no call uses at the moment; there are never more than calls at one time.
class WorkspacePool {
 public:
  std::unique_ptr<Workspace> take() {
    {
      std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        auto workspace = std::move(idle_.back());
        idle_.pop_back();
        return workspace;
      }
    }
    return std::make_unique<Workspace>();
  }
  void give(std::unique_ptr<Workspace> workspace) {
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(workspace));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;
};

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerDefinition d)
      : definition(std::move(d)),
        before_normalizer(added_tokens(definition, FoundIn::text)),
        after_normalizer(added_tokens(definition, FoundIn::normalized_text)),
        pretokenizer(definition.steps),
        bpe(definition),
        bytes(definition.tokens),
        special(definition.tokens.size(), false),
        hash(fingerprint_of(definition)) {
    for (const AddedToken& token : definition.added) {
      bytes[token.id] = token.content;
      special[token.id] = token.special;
    }
    for (size_t id = bytes.size(); id-- > 0;) ids[bytes[id]] = static_cast<int32_t>(id);
    for (const AddedToken& token : definition.added) ids[token.content] = token.id;
  }

  void encode(std::string_view text, AddedTokenMatcher::Specials specials, Workspace& w,
              std::vector<int32_t>& out) const {
    auto word = [&](std::string_view bytes) { bpe.encode(bytes, w.bpe, out); };
    w.pieces.clear();
    before_normalizer.split(text, specials, w.pieces);
    for (const auto& piece : w.pieces) {
      if (piece.id >= 0) {
        out.push_back(piece.id);
        continue;
      }
      std::string normalized;
      w.inner_pieces.clear();
      after_normalizer.split(definition.nfc ? in_nfc(piece.text, normalized) : piece.text, specials,
                             w.inner_pieces);
      for (const auto& inner : w.inner_pieces) {
        if (inner.id >= 0) {
          out.push_back(inner.id);
        } else {
          pretokenizer.split(inner.text, w.pattern, word);
        }
      }
    }
  }

  TokenizerDefinition definition;
  AddedTokenMatcher before_normalizer, after_normalizer;
  Pretokenizer pretokenizer;
  Bpe bpe;
  std::vector<std::string> bytes;  ///< by id, as decode writes them
  std::vector<bool> special;
  std::unordered_map<std::string_view, int32_t> ids;
  uint64_t hash;
  std::vector<std::filesystem::path> files;
  mutable WorkspacePool workspaces;
};

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

std::shared_ptr<const Tokenizer> Tokenizer::parse(std::string_view tokenizer_json,
                                                  std::string_view config_json, const std::string& name) {
  auto impl =
      std::make_unique<Impl>(read_definition({std::string(tokenizer_json), std::string(config_json)}, name));
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(impl)));
}

std::shared_ptr<const Tokenizer> Tokenizer::load(const std::filesystem::path& path) {
  return in_three_attempts({.complaint = "the tokenizer could not be read"}, [&] {
    bool folder = is_folder(path.string());
    auto file = folder ? path / "tokenizer.json" : path;
    if (!is_there(file.string())) {
      fail<FileError>(
          "tokenizer", "{} does not exist; expected a tokenizer.json or a folder with one{}", file.string(),
          folder ? " (tokenizer.model and vocab.json are not supported: convert them with HF tokenizers)"
                 : "");
    }
    std::vector<std::filesystem::path> files{file};
    TokenizerTexts texts{.tokenizer_json = read_file(file.string(), kMaxFileBytes)};
    const auto read_beside = [&](const char* name, std::string& text) {
      const auto beside = file.parent_path() / name;
      if (!is_there(beside.string())) return;
      files.push_back(beside);
      text = read_file(beside.string(), kMaxFileBytes);
      if (text.empty()) fail<FileError>("tokenizer", "{} is empty", beside.string());
    };
    read_beside("tokenizer_config.json", texts.config_json);
    read_beside("special_tokens_map.json", texts.special_tokens_map);
    auto impl = std::make_unique<Impl>(read_definition(texts, file.string()));
    impl->files = std::move(files);
    return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(impl)));
  });
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->bytes.size()); }

std::optional<int32_t> Tokenizer::bos_id() const { return known(impl_->definition.bos_id); }
std::optional<int32_t> Tokenizer::eos_id() const { return known(impl_->definition.eos_id); }
std::optional<int32_t> Tokenizer::pad_id() const { return known(impl_->definition.pad_id); }
bool Tokenizer::adds_bos() const { return impl_->definition.adds_bos; }
bool Tokenizer::adds_eos() const { return impl_->definition.adds_eos; }
uint64_t Tokenizer::fingerprint() const { return impl_->hash; }
const std::vector<std::filesystem::path>& Tokenizer::files() const { return impl_->files; }

std::string Tokenizer::edited_json(std::string_view tokenizer_json, bool begins_with_bos) const {
  return edit_definition(tokenizer_json, impl_->definition,
                         begins_with_bos ? TextStart::bos : TextStart::text);
}

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& out, const EncodeOptions& options) const {
  const TokenizerDefinition& d = impl_->definition;
  auto workspace = impl_->workspaces.take();
  if (options.add_bos && d.bos_id >= 0) out.push_back(d.bos_id);
  using Specials = AddedTokenMatcher::Specials;
  const bool parses = options.special_text == EncodeOptions::SpecialText::parse;
  impl_->encode(text, parses ? Specials::found : Specials::left_as_text, *workspace, out);
  if (options.add_eos && d.eos_id >= 0) out.push_back(d.eos_id);
  impl_->workspaces.give(std::move(workspace));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  encode(text, ids, options);
  return ids;
}

std::string Tokenizer::normalized(std::string_view text) const {
  std::string normal;
  return std::string(impl_->definition.nfc ? in_nfc(text, normal) : text);
}

bool Tokenizer::cuts_as_qwen2() const {
  const TokenizerDefinition& d = impl_->definition;
  const auto is_qwen2 = [](const SplitStep& step) {
    return step.regex == kQwen2Pattern && !step.literal && !step.add_prefix_space;
  };
  return d.nfc && d.steps.size() == 1 && is_qwen2(d.steps[0]) && !d.ignore_merges;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  std::string text;
  for (int32_t id : ids) {
    std::string_view bytes = token_bytes(id);
    if (impl_->special[id] && options.special_tokens == DecodeOptions::SpecialTokens::drop) continue;
    text.append(bytes);
  }
  return text;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    fail<DataError>("tokenizer", "token id {} is outside the vocabulary; expected 0 to {}", id,
                    vocab_size() - 1);
  }
  return impl_->bytes[id];
}

bool Tokenizer::is_special(int32_t id) const {
  token_bytes(id);
  return impl_->special[id];
}

std::optional<int32_t> Tokenizer::token_id(std::string_view bytes) const {
  auto it = impl_->ids.find(bytes);
  return it == impl_->ids.end() ? std::nullopt : std::optional(it->second);
}

std::string Tokenizer::describe() const {
  const TokenizerDefinition& d = impl_->definition;
  std::string text = fmt::format(
      "model: byte-level BPE, {}{}\nvocabulary: {}, {} of them added ({} special)\nnormalizer: {}\n",
      counted(d.merges.size(), "merge"), d.ignore_merges ? " (ignored for words that are tokens)" : "",
      counted(d.tokens.size(), "token"), d.added.size(),
      std::ranges::count(d.added, true, &AddedToken::special), d.nfc ? "NFC" : "none");
  for (const SplitStep& step : d.steps) {
    text += fmt::format("split: {}{}\n", step.add_prefix_space ? "after adding a space in front, " : "",
                        step.regex.empty() ? "nothing" : step.regex);
  }
  auto role = [&](const char* name, int32_t id, bool added = false) {
    text += id < 0 ? fmt::format("{}: none\n", name)
                   : fmt::format("{}: {} '{}'{}\n", name, id, impl_->bytes[id],
                                 added ? ", added to every text" : "");
  };
  role("bos", d.bos_id, d.adds_bos);
  role("eos", d.eos_id, d.adds_eos);
  role("pad", d.pad_id);
  text += fmt::format("fingerprint: {:016x}\n", impl_->hash);
  if (d.key_style == KeyStyle::raw)
    text += "note: the vocabulary's keys are text, not byte-level stand-ins\n";
  if (const int64_t unmade = tokens_never_made(d); unmade > 0)
    text += fmt::format("note: no merge leads to {}, so text never produces it\n", counted(unmade, "token"));
  return text;
}

}  // namespace ottava
