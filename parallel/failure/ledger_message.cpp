#include "parallel/failure/ledger_message.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/contains.h"
#include "core/text/number.h"
#include "core/text/split.h"

namespace ottava {
namespace {

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

// Off the front of `bytes`; false if there are fewer.
bool take_lines(std::string_view& bytes, std::span<std::string_view> lines) {
  for (std::string_view& line : lines) {
    const size_t end = bytes.find('\n');
    if (end == std::string_view::npos) return false;
    line = bytes.substr(0, end);
    bytes.remove_prefix(end + 1);
  }
  return true;
}

// Rows of numbers that are not negative, with a blank between any two.
template <size_t kColumns>
std::optional<std::vector<std::array<int64_t, kColumns>>> rows_of(std::string_view line) {
  std::vector<std::array<int64_t, kColumns>> rows;
  size_t column = 0;
  if (line.empty()) return rows;
  for (std::string_view part : split_text(line, ' ')) {
    const auto number = parse_number<int64_t>(part);
    if (!number || *number < 0) return std::nullopt;
    if (column == 0) rows.emplace_back();
    rows.back()[column] = *number;
    column = (column + 1) % kColumns;
  }
  if (column != 0) return std::nullopt;
  return rows;
}

std::optional<RankRun> run_of(int64_t first, int64_t count, int64_t stride) {
  if (std::max({first, count, stride}) > INT32_MAX || stride < 1) return std::nullopt;
  return RankRun{static_cast<int>(first), static_cast<int>(count), static_cast<int>(stride)};
}

bool read_ranks(std::string_view line, EnteredCall& call) {
  const auto rows = rows_of<3>(line);
  if (!rows) return false;
  for (const auto& [first, count, stride] : *rows) {
    const auto run = run_of(first, count, stride);
    if (!run) return false;
    call.ranks.push_back(*run);
  }
  return true;
}

bool read_messages(std::string_view line, ProgressRecord& record) {
  const auto rows = rows_of<6>(line);
  if (!rows) return false;
  for (const auto& [first, count, stride, sent, received, awaited] : *rows) {
    const auto run = run_of(first, count, stride);
    if (!run || awaited > 1) return false;
    record.messages.push_back(
        {.peers = *run, .sent = sent, .received = received, .is_awaited = awaited == 1});
  }
  return true;
}

bool read_collectives(std::string_view line, ProgressRecord& record) {
  const auto rows = rows_of<2>(line);
  if (!rows) return false;
  for (const auto& [group, count] : *rows) {
    if (group > UINT32_MAX) return false;
    record.collectives[static_cast<uint32_t>(group)] = count;
  }
  return true;
}

}  // namespace

// kind, then lines: rank, state, was_inside, collective, step, sequence, elements, group, its collectives,
// place, axis, label, work, ranks ("first count stride ..."), collectives ("group count ..."), messages
// ("first count stride sent received awaited ..."); the text is the rest.
std::string LedgerMessage::encode() const {
  const EnteredCall& call = record.call;
  std::vector<int64_t> ranks, collectives, messages;
  for (const RankRun& run : call.ranks) ranks.insert(ranks.end(), {run.first, run.count, run.stride});
  for (const auto& [group, count] : record.collectives) collectives.insert(collectives.end(), {group, count});
  for (const PeerMessages& m : record.messages) {
    messages.insert(messages.end(),
                    {m.peers.first, m.peers.count, m.peers.stride, m.sent, m.received, m.is_awaited ? 1 : 0});
  }
  return fmt::format("{}{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}",
                     static_cast<char>(kind), record.rank, static_cast<int>(record.state),
                     record.was_inside ? 1 : 0, static_cast<int>(call.collective), record.step, call.sequence,
                     call.elements, call.group, call.collectives, call.place, one_line(call.axis),
                     one_line(call.label), one_line(call.work), fmt::join(ranks, " "),
                     fmt::join(collectives, " "), fmt::join(messages, " "), text);
}

std::optional<LedgerMessage> LedgerMessage::decode(std::string_view bytes) {
  LedgerMessage message;
  if (bytes.empty() || !contains(std::string_view("RGFQAPX"), bytes[0])) return std::nullopt;
  message.kind = static_cast<Kind>(bytes[0]);
  bytes.remove_prefix(1);
  std::array<std::string_view, 16> lines;
  if (!take_lines(bytes, lines)) return std::nullopt;
  std::array<int64_t, 10> numbers;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto number = parse_number<int64_t>(lines[i]);
    if (!number) return std::nullopt;
    numbers[i] = *number;
  }
  const auto [rank, state, inside, collective, step, sequence, elements, group, of_all, place] = numbers;
  if (rank < 0 || rank > INT32_MAX || state < 0 || state > static_cast<int>(ProgressRecord::State::failed) ||
      collective < 0 || collective > static_cast<int>(Collective::graph) || group < 0 || group > UINT32_MAX) {
    return std::nullopt;
  }
  ProgressRecord& r = message.record;
  r.step = step;
  r.rank = static_cast<int>(rank);
  r.state = static_cast<ProgressRecord::State>(state);
  r.was_inside = inside != 0;
  EnteredCall& call = r.call;
  call.collective = static_cast<Collective>(collective);
  call.axis = lines[10];
  call.label = lines[11];
  call.work = lines[12];
  call.elements = elements;
  call.group = static_cast<uint32_t>(group);
  call.collectives = of_all;
  call.sequence = sequence;
  call.place = place;
  if (!read_ranks(lines[13], call) || !read_collectives(lines[14], r) || !read_messages(lines[15], r))
    return std::nullopt;
  message.text = bytes;
  return message;
}

}  // namespace ottava
