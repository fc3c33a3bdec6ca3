#include "apps/devices/device_table.h"

#include <algorithm>
#include <cctype>
#include <span>

#include "apps/devices/built_in_tables.h"
#include "core/config/nearest.h"
#include "core/config/source.h"
#include "core/error.h"
#include "core/text/gib.h"

namespace ottava {
namespace {

template <class Table>
struct Figure {
  std::string_view key;
  double Table::*value;
  bool may_be_left_out = false;
};

constexpr Figure<DeviceTable> kDeviceFigures[] = {
    {"bf16_tflops", &DeviceTable::bf16_tflops},
    {"fp8_tflops", &DeviceTable::fp8_tflops},
    {"fp32_tflops", &DeviceTable::fp32_tflops},
    {"memory_gib", &DeviceTable::memory_gib},
    {"reserve_gib", &DeviceTable::reserve_gib},
    {"memory_gb_per_s", &DeviceTable::memory_gb_per_s},
    {"memory_efficiency", &DeviceTable::memory_efficiency},
    {"sms", &DeviceTable::sms},
    {"gemm_bf16", &DeviceTable::gemm_bf16},
    {"gemm_fp8", &DeviceTable::gemm_fp8},
    {"gemm_fp32", &DeviceTable::gemm_fp32},
    {"gemm_weights", &DeviceTable::gemm_weights, true},
    {"attention_forward", &DeviceTable::attention_forward},
    {"attention_backward", &DeviceTable::attention_backward},
    {"softmax_forward", &DeviceTable::softmax_forward, true},
    {"softmax_backward", &DeviceTable::softmax_backward, true},
    {"cudnn_forward", &DeviceTable::cudnn_forward},
    {"cudnn_backward", &DeviceTable::cudnn_backward},
    {"launch_us", &DeviceTable::launch_us},
    {"link_gb_per_s", &DeviceTable::link_gb_per_s},
    {"link_base_us", &DeviceTable::link_base_us},
    {"link_hop_us", &DeviceTable::link_hop_us},
    {"overlap_slowdown", &DeviceTable::overlap_slowdown},
    {"error_percent", &DeviceTable::error_percent},
};
constexpr Figure<NetworkTable> kNetworkFigures[] = {
    {"nic_gb_per_s", &NetworkTable::nic_gb_per_s},
    {"efficiency", &NetworkTable::efficiency},
    {"hop_us", &NetworkTable::hop_us},
    {"fabric", &NetworkTable::fabric},
};
std::span<const Figure<DeviceTable>> figures_of(const DeviceTable&) { return kDeviceFigures; }
std::span<const Figure<NetworkTable>> figures_of(const NetworkTable&) { return kNetworkFigures; }

[[noreturn]] void refuse(const config::Value& at, std::string_view what) {
  fail<ConfigError>("tables", "{}: {}", config::to_string(at.at), what);
}

std::string text_of(const config::Value& value, std::string_view key) {
  if (value.kind != config::Value::Kind::text)
    refuse(value, fmt::format("{} is {}, expected a string", key, config::describe(value)));
  return value.text;
}

// What only one kind of table has.
bool read_other(DeviceTable& table, const config::Member& member) {
  using Kind = config::Value::Kind;
  const auto require = [&](Kind kind, std::string_view expected) {
    if (member.value.kind == kind) return;
    refuse(member.value,
           fmt::format("{} is {}, expected {}", member.key, config::describe(member.value), expected));
  };
  if (member.key == "driver_names") {
    require(Kind::list, "a list of strings");
    table.driver_names.clear();
    for (const config::Value& name : member.value.items)
      table.driver_names.push_back(text_of(name, member.key));
    return true;
  }
  if (member.key != "capability") return false;
  require(Kind::integer, "an integer");
  if (const int64_t of = member.value.integer; of != 0 && (of < kLeastCapability || of > kMostCapability)) {
    refuse(member.value, fmt::format("capability is {}, expected {} to {}, as 90 for 9.0, or 0 for a CPU", of,
                                     kLeastCapability, kMostCapability));
  }
  table.capability = static_cast<int>(member.value.integer);
  return true;
}
bool read_other(NetworkTable&, const config::Member&) { return false; }

template <class Table>
void read_member(Table& table, const config::Member& member) {
  using Kind = config::Value::Kind;
  if (member.key == "name") {
    table.name = text_of(member.value, member.key);
    return;
  }
  const auto figures = figures_of(table);
  const auto figure = std::ranges::find(figures, member.key, &Figure<Table>::key);
  if (figure == figures.end()) {
    if (read_other(table, member)) return;
    std::vector<std::string> keys{"name"};
    for (const auto& f : figures) keys.emplace_back(f.key);
    const std::string meant = config::nearest(member.key, keys);
    refuse(member.value,
           fmt::format("unknown key {}{}", member.key, meant.empty() ? "" : ", did you mean " + meant + "?"));
  }
  const std::vector<config::Value>& pair = member.value.items;
  const bool is_number = pair.size() == 2 && (pair[0].kind == Kind::integer || pair[0].kind == Kind::real);
  if (!is_number || pair[1].kind != Kind::text || pair[1].text.empty())
    refuse(member.value, fmt::format("{} is not [number, source]", member.key));
  if (!(pair[0].real >= 0))
    refuse(member.value, fmt::format("{} is {}, expected no less than 0", member.key, pair[0].real));
  table.*(figure->value) = pair[0].real;
  table.sources.insert_or_assign(member.key, pair[1].text);
}

bool is_file(std::string_view table) { return table.ends_with(".yaml") || table.ends_with(".yml"); }

config::Value parse_table(std::string_view name, std::span<const BuiltInTable> built_in,
                          std::string_view option) {
  const auto known = std::ranges::find(built_in, name, &BuiltInTable::name);
  if (known != built_in.end()) return config::parse_yaml(known->text, fmt::format("{}.yaml", known->name));
  std::vector<std::string> names;
  for (const BuiltInTable& table : built_in) names.emplace_back(table.name);
  const bool is_of_several =  // h100: the SXM, the PCIe and the NVL differ by a third
      std::ranges::count_if(names, [&](const std::string& n) { return n.starts_with(name); }) > 1;
  const std::string meant = is_of_several ? "" : config::nearest(name, names);
  fail<ConfigError>("plan", "{} '{}' is unknown{}: expected one of {}, or a file of your own (NAME.yaml)",
                    option, name, meant.empty() ? "" : fmt::format(" (did you mean {}?)", meant),
                    config::one_of_text(names));
}

template <class Table>
Table find_table(std::string_view name, std::span<const BuiltInTable> built_in, std::string_view option) {
  const config::Value text = is_file(name) ? config::read_file(name) : parse_table(name, built_in, option);
  Table table;
  if (const config::Value* base = text.find("base")) {
    const std::string other = text_of(*base, "base");
    if (is_file(other)) refuse(*base, "base is one of the built-in tables");
    table = find_table<Table>(other, built_in, option);
  }
  for (const config::Member& member : text.members)
    if (member.key != "base") read_member(table, member);
  for (const auto& figure : figures_of(table)) {
    if (!figure.may_be_left_out && !table.sources.contains(figure.key))
      fail<ConfigError>("tables", "{}: {} is missing: add it, or start from another table with base", name,
                        figure.key);
  }
  table.id = name;
  if (table.name.empty()) table.name = name;
  return table;
}

/// Whether `text` has `part`, with neither a letter nor a digit before and after it.
bool has_words(std::string_view text, std::string_view part) {
  const auto is_inside = [&](size_t at) {
    return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0;
  };
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1))
    if (!(at > 0 && is_inside(at - 1)) && !is_inside(at + part.size())) return true;
  return false;
}

/// Whether a GPU is a part of one (Multi-Instance GPU): "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
bool is_slice(std::string_view name) { return has_words(name, "MIG"); }

/// Characters of the longest of the table's driver_names that is in the name; 0 if none is.
size_t longest_part(const DeviceTable& table, std::string_view driver_name) {
  size_t longest = 0;
  for (const std::string& part : table.driver_names) {
    if (has_words(driver_name, part) && is_slice(part) == is_slice(driver_name))
      longest = std::max(longest, part.size());
  }
  return longest;
}

}  // namespace

DeviceTable find_device(std::string_view name) {
  return find_table<DeviceTable>(name, built_in_devices(), "--device");
}
NetworkTable find_network(std::string_view name) {
  return find_table<NetworkTable>(name, built_in_networks(), "--network");
}

std::optional<DeviceTable> device_of_driver(std::string_view driver_name) {
  std::optional<DeviceTable> best;
  size_t longest = 0;
  for (const BuiltInTable& built_in : built_in_devices()) {
    const DeviceTable table = find_device(built_in.name);
    if (const size_t length = longest_part(table, driver_name); length > longest)
      longest = length, best = table;
  }
  return best;
}

std::optional<DeviceTable> device_of_driver(std::string_view driver_name, size_t memory_bytes) {
  std::optional<DeviceTable> table = device_of_driver(driver_name);
  if (!table) return table;
  table->name = driver_name;
  table->memory_gib = gib(memory_bytes);
  table->sources.insert_or_assign("memory_gib", "this GPU's own");
  return table;
}

bool is_of(const DeviceTable& table, std::string_view driver_name) {
  const size_t length = longest_part(table, driver_name);
  const std::optional<DeviceTable> best = device_of_driver(driver_name);
  return length > 0 && (!best || length >= longest_part(*best, driver_name));
}

}  // namespace ottava
