#include "parallel/launcher/rank_accounts.h"

#include <algorithm>
#include <utility>

#include "core/contains.h"
#include "core/text/listed.h"

namespace ottava {

std::optional<RankAccount> take_account(std::string& read) {
  const size_t middle = read.find('\0');
  const size_t end = middle == std::string::npos ? middle : read.find('\0', middle + 1);
  if (end == std::string::npos) return std::nullopt;
  RankAccount account{read.substr(0, middle), read.substr(middle + 1, end - middle - 1)};
  // A command that is not ours may say no more than its line.
  if (const char first = account.line.empty() ? 0 : account.line.front(); first == 1 || first == 2) {
    account.printed = Printed{first};
    account.line.erase(0, 1);
  }
  read.erase(0, end + 1);
  return account;
}

bool RankAccounts::add(int rank, std::string text, Shown shown) {
  auto said = std::ranges::find(all_, text, &Said::text);
  if (said == all_.end()) said = all_.insert(said, {std::move(text), {}, Shown::no});
  if (!contains(said->ranks, rank)) said->ranks.push_back(rank);
  if (shown == Shown::no || said->shown == Shown::yes) return false;
  said->shown = Shown::yes;
  return true;
}

bool RankAccounts::has(int rank) const {
  return std::ranges::any_of(all_, [&](const Said& said) { return contains(said.ranks, rank); });
}

std::string RankAccounts::summary(int ranks, bool is_read_with_lines) const {
  const auto is_of_all = [&](const Said& said) { return std::cmp_equal(said.ranks.size(), ranks); };
  const std::string all = ranks == 1   ? "the rank"
                          : ranks == 2 ? "both ranks"
                                       : fmt::format("all {} ranks", ranks);
  if (all_.size() == 1 && is_of_all(all_[0]) && all_[0].shown == Shown::yes && is_read_with_lines)
    return fmt::format("ottava launch: {} ended with the error above\n", all);
  std::vector<Said> by_rank = all_;
  for (Said& said : by_rank) std::ranges::sort(said.ranks);
  std::ranges::sort(by_rank, {}, &Said::ranks);
  std::string text = "ottava launch: the ranks ended with an error; their accounts:\n";
  for (const Said& said : by_rank) {
    constexpr size_t kNamed = 16;
    const std::string who = listed(
        said.ranks, [](int rank) { return std::to_string(rank); }, kNamed);
    text += fmt::format("{}: {}\n",
                        is_of_all(said) && ranks > 1 ? all
                        : said.ranks.size() == 1     ? "rank " + who
                                                     : "ranks " + who,
                        said.text);
  }
  return text;
}

}  // namespace ottava
