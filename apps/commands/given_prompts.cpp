#include "apps/commands/given_prompts.h"

#include <algorithm>
#include <string_view>

#include "apps/commands/encoded_segment.h"
#include "core/data/packing.h"
#include "core/error.h"

namespace ottava {
namespace {

void add_prompt(std::string_view text, GivenPrompts& prompts) {
  if (text.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos)
    ++prompts.left_out;
  else
    prompts.texts.emplace_back(text);
}

void add_lines(std::string_view text, GivenPrompts& prompts) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    add_prompt(line, prompts);
    begin = end + 1;
  }
}

}  // namespace

GivenPrompts given_prompts(const data::Corpus& corpus, const std::string& source,
                           const std::string& text_key) {
  const data::DocumentEncoder encoder(corpus, {}, text_key);
  GivenPrompts prompts;
  std::string scratch;
  for_each_segment(corpus, [&](const data::Segment& segment) {
    for (const data::Document& document : segment.documents) {
      const std::string_view text = encoder.check(segment, document, scratch).value_or("");
      if (document.kind == data::Document::Kind::text) {
        add_lines(text, prompts);
      } else {
        add_prompt(text, prompts);
      }
    }
  });
  if (prompts.texts.empty()) fail<DataError>("generate", "there is no prompt in '{}'", source);
  return prompts;
}

}  // namespace ottava
