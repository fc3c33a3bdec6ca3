#include <string>

#include "apps/config/experiment.h"
#include "core/io/file.h"
#include "tests/support/catch.h"
#include "tests/support/overrides.h"

using namespace ottava;
using namespace ottava::test;

namespace {

struct Model {
  const char *flavor, *vocabulary;
};

std::string table(const Model& model, int tp, const Overrides& more = {}) {
  const Overrides overrides = flavor_at_8192(model.flavor, model.vocabulary) +
                              Overrides{"--model.converters", "[quantize.linear.float8]",
                                        "--parallelism.tensor_parallel_degree", std::to_string(tp)} +
                              more;
  return fp8::policy_table(resolve_experiment(load_config("", overrides), nullptr, tp).shape.float8_policy);
}

}  // namespace

// tests/fp8/policy_test.cpp holds the policy to these tables with layers written out by hand. Here they come
// from where a run takes them: the flavor, its parameter table, and the section of the configuration.
TEST_CASE(
    "policy: a configuration of debugmodel, 8B or 70B gives the golden tables at tensor parallel 1, 2, 4, "
    "8") {
  std::string text;
  for (const Model& model : {Model{"debugmodel", "2256"}, Model{"8B", "128256"}, Model{"70B", "128256"}}) {
    for (int tp : {1, 2, 4, 8})
      text += fmt::format("# {}, tp {}, tensorwise\n{}\n", model.flavor, tp, table(model, tp));
    text += fmt::format("# {}, tp 1, rowwise, auto_filter_small_kn\n{}\n", model.flavor,
                        table(model, 1,
                              {"--quantize.linear.float8.recipe_name", "rowwise",
                               "--quantize.linear.float8.filter_fqns", "[output, auto_filter_small_kn]"}));
    text += fmt::format(
        "# {}, tp 1, weight gradients, wk and outer blocks in bf16\n{}\n", model.flavor,
        table(model, 1,
              {"--quantize.linear.float8.recipe_name", "tensorwise_with_gw_hp",
               "--quantize.linear.float8.policy", "[{match: 'layers.*.attention.wk', recipe: bf16}]",
               "--quantize.linear.float8.high_precision_first_blocks", "1",
               "--quantize.linear.float8.high_precision_last_blocks", "2"}));
  }
  CHECK(text == read_file(OTTAVA_SOURCE_DIR "/tests/golden/fp8/policy_tables.txt"));
}
