#include "apps/config/decisions.h"

#include <algorithm>
#include <iterator>

#include "core/io/json.h"
#include "core/log.h"
#include "parallel/checkpoint/checksum.h"
#include "parallel/comm/gather.h"

namespace ottava {

const Decisions::Entry* Decisions::find(std::string_view name) const {
  auto found = std::ranges::find(entries, name, &Entry::name);
  return found == entries.end() ? nullptr : &*found;
}

uint64_t Decisions::hash() const {
  std::string text = made_for;
  for (const Entry& e : entries) text += "\n" + e.name + "=" + e.value;
  return checkpoint::text_checksum(text);
}

std::string to_json(const Decisions& decisions) {
  Json entries = Json::Array{};
  for (const Decisions::Entry& e : decisions.entries) {
    entries.push(Json().set("name", e.name).set("value", e.value).set("reason", e.reason));
  }
  return Json().set("made_for", decisions.made_for).set("entries", std::move(entries)).dump(2) + "\n";
}

Decisions parse_decisions(std::string_view text, std::string_view where) {
  const Json json = Json::parse(text, where);
  auto text_of = [&](const Json& parent, const char* name) {
    return parent.at(name, where).as_string(fmt::format("{}: {}", where, name));
  };
  Decisions out{.made_for = text_of(json, "made_for")};
  for (const Json& entry : json.at("entries", where).as_array(fmt::format("{}: entries", where))) {
    out.entries.push_back({text_of(entry, "name"), text_of(entry, "value"), text_of(entry, "reason")});
  }
  return out;
}

void log_decision(const Decisions::Entry& entry, bool before) {
  log::info("Decided{}: {} = {} ({})", before ? " before" : "", entry.name, entry.value, entry.reason);
}

Decisions of_first_rank(const Decisions& mine, Communicator& control) {
  if (control.size() == 1) return mine;
  return parse_decisions(text_of_rank_0(control, to_json(mine), "decisions"), "decisions of rank 0");
}

Decisions of_all_ranks(const Decisions& mine, Communicator& control) {
  Decisions all = of_first_rank(mine, control);
  if (control.size() == 1) return all;
  Decisions others;  // most ranks have none, so that little is gathered
  std::ranges::copy_if(mine.entries, std::back_inserter(others.entries),
                       [&](const Decisions::Entry& e) { return !all.find(e.name); });
  for (const std::string& text : gather_text(control, to_json(others), "decisions")) {
    for (Decisions::Entry& e : parse_decisions(text, "decisions of another rank").entries)
      if (!all.find(e.name)) all.entries.push_back(std::move(e));
  }
  return all;
}

}  // namespace ottava
