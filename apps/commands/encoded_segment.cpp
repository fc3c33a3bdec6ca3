#include "apps/commands/encoded_segment.h"

#include <atomic>
#include <exception>

#include "core/error.h"
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

void for_each_segment(const data::Corpus& corpus, const std::function<void(const data::Segment&)>& use) {
  data::Segment segment;
  for (int64_t block = 0; block < corpus.blocks(); ++block) {
    for (data::BlockReader reader(corpus, block); !reader.finished();) {
      reader.next(segment);
      use(segment);
    }
  }
}

void for_each_encoded_segment(const data::Corpus& corpus, const data::DocumentEncoder& encoder,
                              const std::function<void(const EncodedSegment&)>& use) {
  for_each_segment(corpus, [&](const data::Segment& segment) { use(encoded_segment(encoder, segment)); });
}

void refuse_tokenized(std::string_view command, const data::Corpus& corpus) {
  for (const data::DataFile& file : corpus.files()) {
    if (is_tokenized(file.format)) {
      fail<DataError>(command, "'{}' is already tokenized ({}); expected text or JSON lines", file.path,
                      name_of(file.format));
    }
  }
}

data::Corpus open_text(std::string_view command, const std::string& source) {
  data::Corpus corpus(data::find_data_files({source}), {.max_text_bytes = data::BlockSizes{}.block_bytes});
  refuse_tokenized(command, corpus);
  return corpus;
}

}  // namespace ottava
