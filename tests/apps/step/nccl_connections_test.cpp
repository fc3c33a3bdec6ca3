// What ranks take of NCCL beside the calls of a step. On a GPU it is memory that no plan contains, so all of
// it must be there before anyone asks what is free for a step.
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "tests/support/catch.h"
#include "tests/support/layout_run.h"
#include "tests/support/nccl_ranks.h"
#include "tests/support/skip.h"

// In a test that is linked with the host execution layer, whose NCCL counts.
namespace ottava::cuda_host {
__attribute__((weak)) std::vector<int> nccl_cta_limits();
}

using namespace ottava;
using namespace ottava::test;

namespace {

constexpr const char* kNoCount = "only the stand-in for NCCL counts its communicators";

/// NCCL's communicators that there are on all ranks together, between two meetings of the ranks.
int64_t communicators(RankGroups& ranks) {
  Stream host = Stream::cpu();
  ranks.control->barrier(host, "all are made");
  const int64_t count = std::ssize(cuda_host::nccl_cta_limits());
  ranks.control->barrier(host, "all were counted");
  return count;
}

// Catch's assertions belong to one thread, ranks are several.
void require(bool holds, const std::string& text) {
  if (!holds) throw std::runtime_error(text);
}

}  // namespace

TEST_CASE("a mesh takes one communicator of NCCL's for each set of ranks") {
  if (!cuda_host::nccl_cta_limits) return skip(kNoCount);
  struct Case {
    Layout layout;
    int sets;  ///< of ranks that a step's calls are among; tensor parallel and stages have one in any case
  };
  for (const Case& c :
       {Case{{.dp_shard = 4}, 1}, Case{{.dp_replicate = 4}, 1}, Case{{.dp_replicate = 2, .dp_shard = 2}, 3},
        Case{{.dp_shard = 2, .tp = 2}, 3}, Case{{.dp_shard = 2, .cp = 2}, 2},
        Case{{.dp_shard = 2, .pp = 2}, 3}, Case{{.tp = 4}, 2}}) {
    DYNAMIC_SECTION(c.layout.mesh().describe()) {
      const int64_t before = std::ssize(cuda_host::nccl_cta_limits());
      CHECK_NOTHROW(run_nccl_mesh(c.layout, [&](std::unique_ptr<RankGroups> groups, int) {
        const int64_t here = (communicators(*groups) - before) / c.layout.world_size();
        require(here == c.sets, fmt::format("{} communicators, expected {}", here, c.sets));
      }));
      CHECK(std::ssize(cuda_host::nccl_cta_limits()) == before);
    }
  }
}
