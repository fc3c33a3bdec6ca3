#pragma once

#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace ottava::test {

/// Words of a command line: "--section.key", "value", ...
using Overrides = std::vector<std::string>;

/// Both, one after the other.
inline Overrides operator+(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// The words of `line`, of which none holds a space.
inline Overrides words(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

struct ModelSize {
  int dim, layers, heads, kv_heads, ffn;
};
inline Overrides model_of(const ModelSize& m) {
  return {"--model.dim",     std::to_string(m.dim),   "--model.n_layers",   std::to_string(m.layers),
          "--model.n_heads", std::to_string(m.heads), "--model.n_kv_heads", std::to_string(m.kv_heads),
          "--model.ffn_dim", std::to_string(m.ffn)};
}

/// A flavor on one sequence of 8192 tokens.
inline Overrides flavor_at_8192(const std::string& flavor, const std::string& vocabulary = "128256") {
  return {"--model.flavor",     flavor, "--model.vocab_size",          vocabulary,
          "--training.seq_len", "8192", "--training.local_batch_size", "1"};
}

}  // namespace ottava::test
