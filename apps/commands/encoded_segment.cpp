#include "apps/commands/encoded_segment.h"

#include <atomic>
#include <exception>
#include <string>

#include "core/threads/parallel_for.h"

namespace ottava {

EncodedSegment encoded_segment(const data::DocumentEncoder& encoder, const data::Segment& segment) {
  EncodedSegment out;
  std::vector<std::vector<int32_t>>& tokens = out.tokens;
  tokens.resize(segment.documents.size());
  std::atomic<int64_t> text_bytes = 0;
  std::vector<std::exception_ptr> errors(segment.documents.size());
  std::atomic<int64_t> first_failed = std::ssize(tokens);
  parallel_for_each(std::ssize(tokens), [&](int64_t i) {
    if (i > first_failed) return;
    size_t d = i;
    std::string scratch;
    try {
      text_bytes += encoder.append(segment, segment.documents[d], tokens[d], scratch);
    } catch (...) {
      errors[d] = std::current_exception();
      for (int64_t first = first_failed; i < first && !first_failed.compare_exchange_weak(first, i);) {
      }
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  out.text_bytes = text_bytes;
  return out;
}

}  // namespace ottava
