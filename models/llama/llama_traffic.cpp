#include "models/llama/llama_traffic.h"

#include <algorithm>

namespace ottava {
namespace {

class Activations {
 public:
  Activations(CommStats& out, int ranks, int rank) : out_(out), ranks_(ranks), rank_(rank) {}

  void move(Collective collective, int64_t times, int64_t bytes) {
    for (int64_t i = 0; i < times; ++i) out_.record({collective, "tp", "", bytes, bytes / ranks_ * (ranks_ - 1)});
  }
  void all_reduce(int64_t count) {
    out_.record({Collective::all_reduce, "tp", "", count * 4, all_reduce_sent(count, 4, ranks_, rank_)});
  }

 private:
  CommStats& out_;
  int ranks_, rank_;
};

}  // namespace

std::vector<int> llama_gathers(const LlamaConfig& config) {
  std::vector<int> gathers(static_cast<size_t>(config.layers) + 2, 2);
  gathers.front() = config.tied_embeddings ? 2 : 1;
  gathers.back() = 1;
  return gathers;
}

CommStats llama_traffic(const LlamaConfig& config, const LlamaStep& step, const FsdpOptions& parameters, const TrafficLayout& layout) {
  CommStats out;
  add_parameter_traffic(out, llama_parameters(config).specs, parameters, layout, llama_gathers(config));
  const int tp = layout.at.tp_size;
  if (tp == 1) return out;
  Activations activations(out, tp, layout.at.tp_rank);
  const int64_t tokens = step.batch * step.sequence, bytes = tokens * config.dim * static_cast<int64_t>(size_of(step.compute));
  const int64_t again = std::count(step.options.recompute.begin(), step.options.recompute.end(), Recompute::block);
  for (int64_t m = 0; m < layout.micro_batches; ++m) {
    activations.move(Collective::all_gather, 6 * config.layers + 2 * again + 2, bytes);
    activations.move(Collective::reduce_scatter, 4 * config.layers + again + 2, bytes);
    for (int64_t begin = 0; begin < tokens; begin += step.options.loss_chunk_rows) {
      const int64_t rows = std::min(tokens - begin, step.options.loss_chunk_rows);
      if (step.options.loss_parallel) {
        for (int i = 0; i < 3; ++i) activations.all_reduce(rows);
      } else {
        activations.move(Collective::all_gather, 1, rows * config.vocab_size * 4);
      }
    }
  }
  return out;
}

}  // namespace ottava
