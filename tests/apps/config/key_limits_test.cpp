#include <fmt/core.h>

#include "tests/support/catch.h"
#include "tests/support/config_of_text.h"
#include "tests/support/message_of.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

TEST_CASE("values whose sums or products 64 bits cannot hold are refused", "[config]") {
  const auto message = [](const std::string& yaml) { return message_of([&] { config_of_text(yaml); }); };
  for (const char* key : {"first_stage_less_layers", "last_stage_less_layers", "layers_per_stage"}) {
    CHECK_THAT(message(fmt::format("parallelism: {{pipeline_parallel_{}: 9223372036854775807}}", key)),
               Contains(" and <= 65536, got"));
  }
  CHECK_THAT(message("parallelism: {pipeline_parallel_microbatch_size: 9223372036854775807}"),
             Contains("expected an integer >= 1 and <= 1073741824, got"));
  for (const char* key : {"profiler_active", "profiler_warmup"}) {
    CHECK_THAT(message(fmt::format("profiling: {{{}: 9223372036854775807}}", key)),
               Contains(" and <= 1073741824, got"));
  }
  CHECK_THAT(message("profiling: {profiler_active: 1073741824, profiler_warmup: 1073741824}"),
             Contains("10 steps are fewer than profiler_warmup 1073741824 + profiler_active 1073741824"));
  for (const char* section : {"training", "validation"}) {
    CHECK_THAT(
        message(fmt::format("{}: {{local_batch_size: 1073741824, seq_len: 1073741824}}", section)),
        Contains(fmt::format("{}.local_batch_size: 1073741824 x seq_len 1073741824 = 1152921504606846976 "
                             "tokens; expected at most 1073741824",
                             section)));
    CHECK(message(fmt::format("{}: {{local_batch_size: 32768, seq_len: 32768}}", section)) == "no error");
  }
}
