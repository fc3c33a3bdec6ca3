#include "parallel/failure/ledger_message.h"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/core.h>

#include "core/contains.h"
#include "core/number.h"

namespace ottava {
namespace {

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

}  // namespace

// kind, then lines: rank, state, was_inside, collective, step, sequence, elements, axis, label, work; the
// text is the rest.
std::string LedgerMessage::encode() const {
  return fmt::format("{}{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}", static_cast<char>(kind), record.rank,
                     static_cast<int>(record.state), record.was_inside ? 1 : 0,
                     static_cast<int>(record.collective), record.step, record.sequence, record.elements,
                     one_line(record.axis), one_line(record.label), one_line(record.work), text);
}

std::optional<LedgerMessage> LedgerMessage::decode(std::string_view bytes) {
  LedgerMessage message;
  if (bytes.empty() || !contains(std::string_view("RGFQAPX"), bytes[0])) return std::nullopt;
  message.kind = static_cast<Kind>(bytes[0]);
  bytes.remove_prefix(1);
  std::vector<std::string_view> lines;
  for (int i = 0; i < 10; ++i) {
    size_t end = bytes.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    lines.push_back(bytes.substr(0, end));
    bytes.remove_prefix(end + 1);
  }
  std::array<int64_t, 7> numbers;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto number = parse_number<int64_t>(lines[i]);
    if (!number) return std::nullopt;
    numbers[i] = *number;
  }
  const auto [rank, state, inside, collective, step, sequence, elements] = numbers;
  if (rank < 0 || rank > INT32_MAX || state < 0 || state > static_cast<int>(ProgressRecord::State::failed) ||
      collective < 0 || collective > static_cast<int>(Collective::graph)) {
    return std::nullopt;
  }
  ProgressRecord& r = message.record;
  r.step = step;
  r.sequence = sequence;
  r.elements = elements;
  r.rank = static_cast<int>(rank);
  r.state = static_cast<ProgressRecord::State>(state);
  r.was_inside = inside != 0;
  r.collective = static_cast<Collective>(collective);
  r.axis = lines[7];
  r.label = lines[8];
  r.work = lines[9];
  message.text = bytes;
  return message;
}

}  // namespace ottava
