#include "tests/apps/report/report_at_start.h"
#include "tests/support/catch.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

TEST_CASE("the report says what is recomputed") {
  const auto selective = [](const char* option) {
    return report(1, {"--activation_checkpoint.mode", "selective",
                      "--activation_checkpoint.selective_ac_option", option});
  };
  CHECK_THAT(selective("op"), Contains("; norms and activations are recomputed\n"));
  CHECK_THAT(selective("all_but_attention"),
             Contains("; all but attention is recomputed in 6 of 6 blocks\n"));
  CHECK_THAT(selective("4"), Contains("; 1 of 6 blocks is recomputed\n"));
  const auto blocks = [](std::vector<Recompute> what) {
    return report(1, {"--model.n_layers", std::to_string(what.size())}, what);
  };
  using enum Recompute;
  CHECK_THAT(blocks({nothing, nothing}), Contains("; nothing is recomputed\n"));
  CHECK_THAT(blocks({elementwise, all_but_attention}),
             Contains("; all but attention is recomputed in 1 of 2 blocks, norms and activations in the "
                      "others\n"));
  CHECK_THAT(
      blocks({block, all_but_attention, elementwise, nothing, nothing}),
      Contains("; recomputed are norms and activations in 1 of 5 blocks, all but attention in 1, all in "
               "1\n"));
  CHECK_THAT(blocks({block, all_but_attention}),
             Contains("; recomputed are all but attention in 1 of 2 blocks, all in 1\n"));
}
