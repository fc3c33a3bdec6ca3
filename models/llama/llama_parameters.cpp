#include "models/llama/llama_parameters.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace ottava {
namespace {

Initialisation normal(double std) { return {Initialisation::Kind::normal, std, 0}; }
Initialisation ones() { return {Initialisation::Kind::ones, 0, 0}; }
Initialisation zeros() { return {Initialisation::Kind::normal, 0, 0}; }

class Table {
 public:
  explicit Table(LlamaParameters& out) : out_(out) {}

  int add(ParameterSpec spec) {
    out_.specs.push_back(std::move(spec));
    return static_cast<int>(out_.specs.size()) - 1;
  }
  int norm(int unit, std::string name, std::string part, std::string hf_name, int64_t size) {
    return add({.name = std::move(name),
                .parts = {{std::move(part), std::move(hf_name), size, 1, ones()}},
                .columns = 1,
                .is_vector = true,
                .tensor_parallel = TensorParallel::replicate,
                .role = ParameterRole::norm,
                .unit = unit});
  }
  int matrix(int unit, std::string name, std::vector<ParameterPart> parts, int64_t columns,
             TensorParallel cut, ParameterRole role) {
    return add({.name = std::move(name),
                .parts = std::move(parts),
                .columns = columns,
                .tensor_parallel = cut,
                .role = role,
                .unit = unit});
  }

 private:
  LlamaParameters& out_;
};

LlamaBlockParameters add_block(Table& table, const LlamaConfig& c, int64_t layer) {
  const int unit = static_cast<int>(layer) + 1;
  const std::string at = fmt::format("layers.{}.", layer), hf = fmt::format("model.layers.{}.", layer);
  const double deep = 0.02 / std::sqrt(2.0 * (layer + 1));
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  LlamaBlockParameters p;
  p.attention_norm =
      table.norm(unit, at + "attention_norm", "attention_norm", hf + "input_layernorm.weight", c.dim);
  p.wqkv = table.matrix(unit, at + "attention.wqkv",
                        {{"wq", hf + "self_attn.q_proj.weight", q, c.heads, normal(0.02)},
                         {"wk", hf + "self_attn.k_proj.weight", kv, c.kv_heads, normal(0.02)},
                         {"wv", hf + "self_attn.v_proj.weight", kv, c.kv_heads, normal(0.02)}},
                        c.dim, TensorParallel::rows, ParameterRole::linear);
  if (c.qkv_bias) {
    p.wqkv_bias = table.add({.name = at + "attention.wqkv_bias",
                             .parts = {{"bq", hf + "self_attn.q_proj.bias", q, c.heads, zeros()},
                                       {"bk", hf + "self_attn.k_proj.bias", kv, c.kv_heads, zeros()},
                                       {"bv", hf + "self_attn.v_proj.bias", kv, c.kv_heads, zeros()}},
                             .columns = 1,
                             .is_vector = true,
                             .tensor_parallel = TensorParallel::rows,
                             .role = ParameterRole::bias,
                             .unit = unit});
  }
  if (c.qk_norm) {
    p.q_norm =
        table.norm(unit, at + "attention.q_norm", "q_norm", hf + "self_attn.q_norm.weight", c.head_dim);
    p.k_norm =
        table.norm(unit, at + "attention.k_norm", "k_norm", hf + "self_attn.k_norm.weight", c.head_dim);
  }
  p.wo = table.matrix(unit, at + "attention.wo",
                      {{"wo", hf + "self_attn.o_proj.weight", c.dim, c.dim, normal(deep)}}, q,
                      TensorParallel::columns, ParameterRole::linear);
  p.ffn_norm = table.norm(unit, at + "ffn_norm", "ffn_norm", hf + "post_attention_layernorm.weight", c.dim);
  p.w13 = table.matrix(unit, at + "feed_forward.w13",
                       {{"w1", hf + "mlp.gate_proj.weight", c.ffn_dim, c.ffn_dim, normal(0.02)},
                        {"w3", hf + "mlp.up_proj.weight", c.ffn_dim, c.ffn_dim, normal(deep)}},
                       c.dim, TensorParallel::rows, ParameterRole::linear);
  p.w2 = table.matrix(unit, at + "feed_forward.w2",
                      {{"w2", hf + "mlp.down_proj.weight", c.dim, c.dim, normal(deep)}}, c.ffn_dim,
                      TensorParallel::columns, ParameterRole::linear);
  return p;
}

}  // namespace

LlamaParameters llama_parameters(const LlamaConfig& c) {
  LlamaParameters out;
  Table table(out);
  const Initialisation output = {Initialisation::Kind::truncated_normal, 1 / std::sqrt(c.dim), 3};
  out.units = static_cast<int>(c.layers) + 2;
  const int last = out.units - 1;
  // N(0,1) embeddings would give logits of standard deviation sqrt(dim) when the output layer shares them.
  // The residual stream begins with the token's own embedding, which the head then finds again: with numbers
  // of dim^-1/2 a small model starts sure that every token repeats itself. 0.02, as in transformers, leaves
  // the stream to the blocks.
  const Initialisation tied = {Initialisation::Kind::truncated_normal, std::min(0.02, output.std), 3};
  out.embedding = table.matrix(0, "tok_embeddings",
                               {{"tok_embeddings", "model.embed_tokens.weight", c.vocab_size, c.vocab_size,
                                 c.tied_embeddings ? tied : normal(1)}},
                               c.dim, TensorParallel::rows, ParameterRole::embedding);
  for (int64_t layer = 0; layer < c.layers; ++layer) out.blocks.push_back(add_block(table, c, layer));
  out.norm = table.norm(last, "norm", "norm", "model.norm.weight", c.dim);
  out.output = out.embedding;
  if (!c.tied_embeddings)
    out.output =
        table.matrix(last, "output", {{"output", "lm_head.weight", c.vocab_size, c.vocab_size, output}},
                     c.dim, TensorParallel::rows, ParameterRole::output);
  return out;
}

}  // namespace ottava
