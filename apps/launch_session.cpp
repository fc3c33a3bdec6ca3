#include "apps/launch_session.h"

#include "core/log.h"
#include "core/parallel_for.h"

namespace ottava {

void run_session(const Config& config, const std::function<void(Session&)>& body) {
  if (config.training.threads > 0) set_parallel_threads(static_cast<int>(config.training.threads));
  Device device = parse_device(config.training.device);
  RankGroups ranks = solo_rank_groups();
  Session session{resolve_experiment(config, load_tokenizer(config), 1), ranks, device};
  body(session);
}

}  // namespace ottava
