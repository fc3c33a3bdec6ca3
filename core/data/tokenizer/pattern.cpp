#include "core/data/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>

#include "core/data/tokenizer/oniguruma.h"
#include "core/error.h"

namespace ottava::tokenizer {
namespace {

constexpr size_t kMaxExpression = 16384;
constexpr size_t kMatchLimit = 10'000'000, kMatchLimitPerByte = 8;
// Alternatives inside repeated groups take stack per repetition; single characters and classes take none.
constexpr size_t kJitStackStart = 64 << 10, kJitStackMax = 64 << 20;

std::string message_of(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

template <class T, void (*Free)(T*)>
struct Release {
  void operator()(T* p) const { Free(p); }
};
template <class T, void (*Free)(T*)>
using Handle = std::unique_ptr<T, Release<T, Free>>;

}  // namespace

struct Pattern::Code {
  std::string expression;
  Handle<pcre2_code, pcre2_code_free> code;
  bool jit = false;
};

struct Pattern::Scratch::State {
  Handle<pcre2_match_data, pcre2_match_data_free> data{pcre2_match_data_create(1, nullptr)};
  Handle<pcre2_match_context, pcre2_match_context_free> context{pcre2_match_context_create(nullptr)};
  Handle<pcre2_jit_stack, pcre2_jit_stack_free> stack{
      pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr)};
};

Pattern::Scratch::Scratch() : state_(std::make_unique<State>()) {
  if (!state_->data || !state_->context) throw std::bad_alloc();
  if (state_->stack) pcre2_jit_stack_assign(state_->context.get(), nullptr, state_->stack.get());
}
Pattern::Scratch::Scratch(Scratch&&) noexcept = default;
Pattern::Scratch::~Scratch() = default;

Pattern::Pattern(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

Pattern Pattern::regex(std::string_view expression) {
  if (expression.size() > kMaxExpression) {
    fail<FileError>("tokenizer", "a split pattern has {} bytes; at most {} are accepted", expression.size(),
                    kMaxExpression);
  }
  const std::string rewritten = pcre_of_oniguruma(expression);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_unique<Code>();
  code->expression = expression;
  // Lines end as Oniguruma's do, whatever this PCRE2 was built for.
  const Handle<pcre2_compile_context, pcre2_compile_context_free> context(
      pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  // \C could stop inside a character, and later calls rely on starting at one.
  code->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rewritten.data()), rewritten.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                                 &offset, context.get()));
  if (!code->code) {
    size_t near = offset < 12 ? 0 : offset - 12;
    while (near < offset && (rewritten[near] & 0xC0) == 0x80) ++near;  // to where a character starts
    fail<FileError>("tokenizer", "split pattern '{}' is not a regular expression: {} near '{}'", expression,
                    message_of(error), rewritten.substr(near, offset - near));
  }
  code->jit = pcre2_jit_compile(code->code.get(), PCRE2_JIT_COMPLETE) == 0;
  return Pattern(std::move(code));
}

Pattern Pattern::literal(std::string_view text) {
  std::string expression;
  for (char c : text) {
    bool plain = static_cast<unsigned char>(c) >= 0x80 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                 (c >= 'a' && c <= 'z') || c == '\0' || c == '\n';
    if (!plain) expression += '\\';
    expression += c;
  }
  return regex(expression);
}

bool Pattern::find(Scratch& scratch, std::string_view text, size_t from, Match& match) const {
  auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  auto* match_data = scratch.state_->data.get();
  auto* context = scratch.state_->context.get();
  const size_t limit = std::max(kMatchLimit, kMatchLimitPerByte * (text.size() - from));
  pcre2_set_match_limit(context, static_cast<uint32_t>(std::min<size_t>(limit, UINT32_MAX)));
  int result = code_->jit
                   ? pcre2_jit_match(code_->code.get(), subject, text.size(), from, 0, match_data, context)
                   : pcre2_match(code_->code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                 match_data, context);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) {
    fail<DataError>("tokenizer", "split pattern '{}' failed at byte {} of a text of {} bytes: {}",
                    code_->expression, from, text.size(), message_of(result));
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(match_data);
  // \K can place the start behind the end, or before where the search began.
  match = {std::max<size_t>(offsets[0], from), std::max<size_t>(offsets[1], from)};
  if (match.end < match.begin) match.end = match.begin;
  return true;
}

}  // namespace ottava::tokenizer
