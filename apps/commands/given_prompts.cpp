#include "apps/commands/given_prompts.h"

#include <algorithm>
#include <string_view>

#include "apps/commands/encoded_segment.h"
#include "core/data/packing.h"
#include "core/error.h"

namespace ottava {
namespace {

void add_lines(std::string_view text, std::vector<std::string>& prompts) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") != std::string_view::npos) prompts.emplace_back(line);
    begin = end + 1;
  }
}

}  // namespace

std::vector<std::string> given_prompts(const data::Corpus& corpus, const std::string& source,
                                       const std::string& text_key) {
  const data::DocumentEncoder encoder(corpus, {}, text_key);
  std::vector<std::string> prompts;
  std::string scratch;
  for_each_segment(corpus, [&](const data::Segment& segment) {
    for (const data::Document& document : segment.documents) {
      const std::string_view text = encoder.check(segment, document, scratch).value_or("");
      if (document.kind == data::Document::Kind::text) {
        add_lines(text, prompts);
      } else if (!text.empty()) {
        prompts.emplace_back(text);
      }
    }
  });
  if (prompts.empty()) fail<DataError>("generate", "there is no prompt in '{}'", source);
  return prompts;
}

}  // namespace ottava
