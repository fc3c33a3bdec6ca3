#include "parallel/pipeline/stage_split.h"

#include <fmt/core.h>

#include "core/counted.h"
#include "core/error.h"

namespace ottava {
namespace {

std::string name_of_unit_part(const StageSplit& s, int64_t position) {
  if (position == 0) return "tok_embeddings";
  if (position <= s.layers) return fmt::format("layers.{}", position - 1);
  return position == s.layers + 1 ? "norm" : "output";
}

std::vector<StageUnits> by_names(const StageSplit& s) {
  std::vector<StageUnits> stages;
  int64_t position = 0;
  for (size_t stage = 0; stage < s.names.size(); ++stage) {
    const auto begin = static_cast<int>(position);
    for (const std::string& name : s.names[stage]) {
      const std::string expected = position < s.layers + 3 ? name_of_unit_part(s, position) : "nothing more";
      if (name != expected)
        fail<ConfigError>(
            "pipeline",
            "stage {} of parallelism.module_fqns_per_model_part names \"{}\" where {} is expected: "
            "name every layer of the model once, in its order",
            stage, name, expected);
      ++position;
    }
    if (s.names[stage].empty())
      fail<ConfigError>("pipeline", "stage {} of parallelism.module_fqns_per_model_part is empty", stage);
    if (position == s.layers + 2)
      fail<ConfigError>(
          "pipeline",
          "stage {} of parallelism.module_fqns_per_model_part ends with norm: norm and output are one "
          "unit here, name both in the last stage",
          stage);
    stages.push_back({begin, static_cast<int>(position)});
  }
  if (position < s.layers + 3)
    fail<ConfigError>("pipeline",
                      "parallelism.module_fqns_per_model_part ends before {}: name every layer of the "
                      "model once, in its order",
                      name_of_unit_part(s, position));
  stages.back().end = static_cast<int>(s.layers) + 2;
  return stages;
}

int64_t count_stages(const StageSplit& s) {
  if (!s.layers_per_stage) return s.ranks * (s.is_looped ? 2 : 1);
  const int64_t effective = s.layers + s.first_less + s.last_less, each = *s.layers_per_stage;
  const int64_t stages = (effective + each - 1) / each;
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
  if (!s.names.empty()) {
    if (static_cast<int64_t>(s.names.size()) % s.ranks != 0)
      fail<ConfigError>("pipeline",
                        "parallelism.module_fqns_per_model_part has {}, not a multiple of the {} of "
                        "pipeline_parallel_degree: change either",
                        counted(s.names.size(), "stage"), counted(s.ranks, "rank"));
    return by_names(s);
  }
  const int64_t stages = count_stages(s), effective = s.layers + s.first_less + s.last_less;
  if (stages == 1) return {{0, static_cast<int>(s.layers) + 2}};
  const int64_t each = effective / stages, more = effective % stages;
  if (each == 0)
    fail<ConfigError>("pipeline",
                      "{} for {} (embedding and head counted as {} and {}): lower "
                      "parallelism.pipeline_parallel_degree",
                      counted(stages, "stage"), counted(effective, "layer"), s.first_less, s.last_less);
  auto require_room = [&](const char* which, int64_t less) {
    if (less > each)
      fail<ConfigError>(
          "pipeline",
          "parallelism.pipeline_parallel_{}_stage_less_layers is {}, more than the {} of a stage "
          "({} / {}): lower it, or take fewer stages",
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
