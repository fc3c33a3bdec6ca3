#include "core/data/data_check.h"

#include <chrono>
#include <numeric>

#include "core/io/utf8.h"

namespace ottava::data {
namespace {

// Steps of this length visit every block, and any few of them lie far apart.
int64_t stride_of(int64_t blocks) {
  int64_t stride = std::max<int64_t>(blocks * 618 / 1000, 1);
  while (std::gcd(stride, blocks) != 1) ++stride;
  return stride;
}

}  // namespace

DataCheck check_data(const Corpus& corpus, const DocumentEncoder& encoder, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  const int64_t blocks = corpus.blocks(), stride = stride_of(blocks), skipped_before = encoder.bad_records();
  DataCheck check;
  Segment segment;
  std::string scratch;
  for (int64_t i = 0; i < blocks; ++i) {
    BlockReader reader(corpus, i * stride % blocks);
    while (!reader.finished()) {
      if (check.bytes > 0 && std::chrono::steady_clock::now() > end) {
        check.bad_records = encoder.bad_records() - skipped_before;
        return check;
      }
      reader.next(segment);
      check.bytes += static_cast<int64_t>(segment.bytes.size());
      check.documents += static_cast<int64_t>(segment.documents.size());
      for (const Document& document : segment.documents) {
        const std::optional<std::string_view> text = encoder.check(segment, document, scratch);
        if (!text || well_formed_end(*text, 0) == text->size()) continue;
        if (++check.ill_formed == 1) check.first_ill_formed = encoder.place(document);
      }
    }
  }
  check.is_whole = true;
  check.bad_records = encoder.bad_records() - skipped_before;
  return check;
}

}  // namespace ottava::data
