#include "parallel/pipeline/stage_split.h"

#include <string_view>

#include "core/error.h"
#include "core/round_up.h"
#include "core/text/counted.h"
#include "core/text/number.h"

namespace ottava {
namespace {

constexpr const char* kSplitPoints = "parallelism.pipeline_parallel_split_points";

int unit_named(const std::string& name, int layers) {
  if (name == "norm") return layers + 1;
  constexpr std::string_view kPrefix = "layers.";
  int layer = -1;
  if (name.starts_with(kPrefix)) layer = parse_number<int>(name.substr(kPrefix.size())).value_or(-1);
  if (layer < 0 || layer >= layers)
    fail<ConfigError>("pipeline", "{} contains \"{}\", expected layers.0 to layers.{} or norm", kSplitPoints,
                      name, layers - 1);
  return layer + 1;
}

std::vector<StageUnits> by_points(const StageSplit& s) {
  const auto layers = static_cast<int>(s.layers);
  std::vector<StageUnits> stages{{0, layers + 2}};
  for (const std::string& name : s.split_points) {
    const int begin = unit_named(name, layers);
    if (begin <= stages.back().begin)
      fail<ConfigError>("pipeline",
                        "{} contains \"{}\" out of order: list every point once, in the model's order",
                        kSplitPoints, name);
    stages.back().end = begin;
    stages.push_back({begin, layers + 2});
  }
  if (stages.size() % s.ranks != 0)
    fail<ConfigError>("pipeline",
                      "{} makes {}, not a multiple of the {} of pipeline_parallel_degree: change either",
                      kSplitPoints, counted(stages.size(), "stage"), counted(s.ranks, "rank"));
  return stages;
}

int64_t count_stages(const StageSplit& s) {
  if (!s.layers_per_stage) return s.ranks * (s.is_looped ? 2 : 1);
  const int64_t effective = s.layers + s.first_less + s.last_less, each = *s.layers_per_stage;
  const int64_t stages = pieces_of(effective, each);
  if (stages % s.ranks != 0)
    fail<ConfigError>(
        "pipeline",
        "parallelism.pipeline_parallel_layers_per_stage {} makes {} of {} (embedding and head "
        "counted as {} and {}), not a multiple of the {} of pipeline_parallel_degree: change either",
        each, counted(stages, "stage"), counted(effective, "layer"), s.first_less, s.last_less,
        counted(s.ranks, "rank"));
  return stages;
}

}  // namespace

std::vector<StageUnits> split_stages(const StageSplit& s) {
  if (!s.split_points.empty()) return by_points(s);
  const int64_t stages = count_stages(s), effective = s.layers + s.first_less + s.last_less;
  if (stages == 1) return {{0, static_cast<int>(s.layers) + 2}};
  const int64_t each = effective / stages, more = effective % stages;
  if (each == 0)
    fail<ConfigError>("pipeline",
                      "{} for {} (embedding and head counted as {} and {}): lower "
                      "parallelism.pipeline_parallel_degree{}",
                      counted(stages, "stage"), counted(effective, "layer"), s.first_less, s.last_less,
                      s.is_looped ? ", or use 1F1B, which has one stage on each rank" : "");
  auto require_room = [&](const char* which, int64_t less) {
    if (less > each)
      fail<ConfigError>("pipeline",
                        "parallelism.pipeline_parallel_{}_stage_less_layers is {}, more than the {} of a "
                        "stage ({} / {}): lower it, or use fewer stages",
                        which, less, counted(each, "layer"), effective, stages);
  };
  require_room("first", s.first_less);
  require_room("last", s.last_less);
  std::vector<StageUnits> out;
  int64_t unit = 1;
  for (int64_t stage = 0; stage < stages; ++stage) {
    int64_t blocks = each + (stage < more ? 1 : 0);
    if (stage == 0) blocks -= s.first_less;
    if (stage + 1 == stages) blocks -= s.last_less;
    out.push_back({static_cast<int>(stage == 0 ? 0 : unit), static_cast<int>(unit + blocks)});
    unit += blocks;
  }
  out.back().end = static_cast<int>(s.layers) + 2;
  return out;
}

}  // namespace ottava
