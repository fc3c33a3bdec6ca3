#include "apps/generate/generator.h"

#include <numeric>

#include "core/ops/elementwise.h"
#include "core/ops/matmul/matmul.h"

namespace ottava {
namespace {

Stream stream_of(Device device) {
  return device.type == DeviceType::cuda ? Stream::cuda(device.index) : Stream::cpu();
}

}  // namespace

Generator::Generator(Options options, Device device)
    : options_(options), stream_(stream_of(device)), ranks_(solo_rank_groups()) {
  if (options.prompt_tokens < 1 || options.prompt_tokens > options.capacity) {
    fail<ConfigError>("generate", "a prompt of {} tokens does not fit a sequence of {}",
                      options.prompt_tokens, options.capacity);
  }
  int64_t workspace_bytes = 0;
  MemoryPlan plan;
  for (int pass = 0; pass < 2; ++pass) {  // the first learns the libraries' scratchpad
    CostRecorder recorder;
    Stream meta = Stream::meta(recorder, device);
    Arena recording;
    build(recording, meta);
    recording.persistent("matmul workspace", DType::u8, {workspace_bytes}, MemoryCategory::workspace);
    run(recording, meta, options.prompt_tokens, 0);
    if (options.capacity > options.prompt_tokens) run(recording, meta, 1, options.prompt_tokens);
    workspace_bytes = recorder.workspace_bytes();
    plan = recording.plan();
    caches_.clear();
  }
  arena_ = std::make_unique<Arena>(plan, device);
  build(*arena_, stream_);
  set_matmul_workspace(stream_, arena_->persistent("matmul workspace", DType::u8, {workspace_bytes},
                                                   MemoryCategory::workspace));
  host_logits_.resize(static_cast<size_t>(options.model.vocab_size));
}

void Generator::build(Arena& arena, Stream& stream) {
  const LlamaConfig& m = options_.model;
  LlamaParameters table = llama_parameters(m);
  parameters_ = std::make_unique<Fsdp>(stream, arena, ranks_, table.specs,
                                       FsdpOptions{.compute = options_.compute, .trains = false});
  model_ = std::make_unique<LlamaModel>(m, table, stream, arena, 1,
                                        LlamaModelOptions{.sequence = options_.capacity, .recompute = {}});
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    Shape shape{1, options_.capacity, m.kv_heads * m.head_dim};
    caches_.push_back(
        {arena.persistent("key cache", options_.compute, shape, MemoryCategory::activations),
         arena.persistent("value cache", options_.compute, shape, MemoryCategory::activations)});
  }
  tokens_ = arena.persistent("tokens", DType::i32, {1, options_.prompt_tokens}, MemoryCategory::data);
  positions_ = arena.persistent("positions", DType::i32, {options_.prompt_tokens}, MemoryCategory::data);
  logits_ = arena.persistent("logits", DType::f32, {1, m.vocab_size}, MemoryCategory::data);
}

void Generator::run(Arena& arena, Stream& stream, int64_t tokens, int64_t position) {
  // A prompt of one token and a later token are the same pass.
  Arena::Phase phase(arena, tokens == options_.prompt_tokens && position == 0 ? "prompt" : "token");
  parameters_->begin_forward_only();
  TensorParallelGroup alone;
  StepContext context{.stream = stream,
                      .arena = arena,
                      .parameters = *parameters_,
                      .tensor_parallel = alone,
                      .compute = options_.compute};
  model_->generate(context,
                   {.tokens = tokens_.reshape({options_.prompt_tokens}).slice(0, tokens).reshape({1, tokens}),
                    .positions = positions_.slice(0, tokens),
                    .position = position,
                    .caches = caches_},
                   logits_);
}

std::span<const float> Generator::prompt(std::span<const int32_t> tokens) {
  if (static_cast<int64_t>(tokens.size()) != options_.prompt_tokens) {
    fail<ConfigError>("generate", "the prompt has {} tokens, {} were announced", tokens.size(),
                      options_.prompt_tokens);
  }
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  cast(stream_, view_of(tokens.data(), tokens_.shape), tokens_);
  cast(stream_, view_of(positions.data(), positions_.shape), positions_);
  run(*arena_, stream_, options_.prompt_tokens, 0);
  length_ = options_.prompt_tokens;
  return fetch();
}

std::span<const float> Generator::next(int32_t token) {
  if (length_ >= options_.capacity)
    fail<ConfigError>("generate", "the sequence is full at {} tokens", options_.capacity);
  auto position = static_cast<int32_t>(length_);
  cast(stream_, view_of(&token, {1}), tokens_.reshape({options_.prompt_tokens}).slice(0, 1));
  cast(stream_, view_of(&position, {1}), positions_.slice(0, 1));
  run(*arena_, stream_, 1, length_);
  ++length_;
  return fetch();
}

std::span<const float> Generator::fetch() {
  cast(stream_, logits_, view_of(host_logits_.data(), logits_.shape));
  stream_.synchronize();
  return host_logits_;
}

}  // namespace ottava
