#include "apps/decide/cpu_products.h"

#include <algorithm>
#include <array>
#include <functional>

#include "apps/decide/workbench.h"
#include "core/cpu/matmul_cache.h"
#include "core/ops/attention/attention.h"
#include "core/ops/matmul/matmul.h"
#include "parallel/comm/agree.h"

namespace ottava {
namespace {

using cpu::Bf16Products;
using Wish = CpuConfig::Products;

// The usual way stays unless the other one gains more than timings vary.
constexpr double kLeastGain = 1.05;

/// One way of multiplying, on tensors of its own.
struct TimedWay {
  explicit TimedWay(cpu::ProductChoice products) { stream.matmul_cache().set_products(products); }
  Stream stream = Stream::cpu();
  Workbench bench{stream.device()};
};
/// The products of one layer, cut down to a fraction of a second.
using Prepare = std::function<void()>(const Experiment&, TimedWay&);

std::function<void()> prepare_matmul(const Experiment& e, TimedWay& way) {
  const LlamaConfig& m = e.shape.model;
  const int64_t tokens = std::min<int64_t>(e.shape.batch * e.shape.sequence / e.mesh.size(MeshAxis::cp), 512),
                rows = std::min<int64_t>(2 * m.ffn_dim / e.mesh.size(MeshAxis::tp), 4096),
                columns = std::min<int64_t>(m.dim, 1024);
  Stream& stream = way.stream;
  Workbench& bench = way.bench;
  const Tensor x = bench.tensor(DType::bf16, {tokens, columns}),
               w = bench.tensor(DType::bf16, {rows, columns}), y = bench.tensor(DType::bf16, {tokens, rows}),
               dx = bench.tensor(DType::bf16, {tokens, columns}),
               dw = bench.zeros(DType::f32, {rows, columns});
  const std::array<Matmul, 3> products{
      {{.kind = MatmulKind::forward, .a = x, .b = w, .out = y},
       {.kind = MatmulKind::input_gradient, .a = y, .b = w, .out = dx},
       {.kind = MatmulKind::weight_gradient, .a = y, .b = x, .out = dw, .accumulate = true}}};
  int64_t bytes = 0;
  for (const Matmul& product : products) bytes = std::max(bytes, matmul_workspace_bytes(stream, product));
  bench.give_workspace(stream, bytes);
  return [&stream, products] {
    for (const Matmul& product : products) matmul(stream, product);
  };
}

std::function<void()> prepare_attention(const Experiment& e, TimedWay& way) {
  const LlamaConfig& m = e.shape.model;
  const int64_t tp = e.mesh.size(MeshAxis::tp), group = m.heads / m.kv_heads,
                kv_heads = std::clamp<int64_t>(16 / group, 1, std::max<int64_t>(m.kv_heads / tp, 1)),
                tokens = std::min<int64_t>(e.shape.sequence, 512);
  const AttentionHeads heads{group * kv_heads, kv_heads, m.head_dim};
  Stream& stream = way.stream;
  Workbench& bench = way.bench;
  const Shape width{tokens, heads.heads * heads.head_dim};
  const Tensor qkv = bench.tensor(DType::bf16, {tokens, heads.row()}), out = bench.tensor(DType::bf16, width),
               dout = bench.tensor(DType::bf16, width), dqkv = bench.tensor(DType::bf16, qkv.shape),
               lse = bench.zeros(DType::f32, {1, heads.heads, tokens});
  const auto workspace = [&](Pass pass) {
    return bench.tensor(DType::u8, {attention_workspace_bytes(stream, pass, DType::bf16, heads, 1, tokens)});
  };
  const AttentionForward forward{.qkv = qkv,
                                 .out = out,
                                 .lse = lse,
                                 .workspace = workspace(Pass::forward),
                                 .heads = heads,
                                 .batch = 1,
                                 .sequence = tokens};
  const AttentionBackward backward{.qkv = qkv,
                                   .out = out,
                                   .lse = lse,
                                   .dout = dout,
                                   .dqkv = dqkv,
                                   .workspace = workspace(Pass::backward),
                                   .heads = heads,
                                   .batch = 1,
                                   .sequence = tokens};
  return [&stream, forward, backward] {
    attention_forward(stream, forward);
    attention_backward(stream, backward);
  };
}

struct Choice {
  const char* key;
  Wish CpuConfig::*wish;
  Bf16Products cpu::ProductChoice::*way;
  const char* what;
  Prepare* prepare;
};
constexpr Choice kChoices[] = {{kBf16Matmul, &CpuConfig::bf16_matmul, &cpu::ProductChoice::matmul,
                                "the products of a linear layer", prepare_matmul},
                               {"cpu.bf16_attention", &CpuConfig::bf16_attention,
                                &cpu::ProductChoice::attention, "attention of a layer", prepare_attention}};

Bf16Products other(Bf16Products way) {
  return way == Bf16Products::direct ? Bf16Products::widened : Bf16Products::direct;
}

bool gains(const Experiment& e) {
  const double tokens = e.shape.batch * e.shape.sequence;
  const int sharers = e.mesh.size(MeshAxis::tp) * e.mesh.size(MeshAxis::cp) * e.mesh.size(MeshAxis::pp);
  return e.shape.parameters.compute == DType::bf16 &&
         model_flops_per_token(e.shape.model, e.shape.sequence) * tokens / sharers >= kFewestFlops;
}

Decisions::Entry measured(const Choice& choice, const Experiment& e) {
  const Bf16Products usual = cpu::usual_products().*choice.way;
  cpu::ProductChoice products = cpu::usual_products();
  TimedWay first(products);
  products.*choice.way = other(usual);
  TimedWay second(products);
  const auto [usually, otherwise] =
      best_milliseconds_by_turns(first.stream, choice.prepare(e, first), choice.prepare(e, second));
  return {choice.key, std::string(name_of(usually > kLeastGain * otherwise ? other(usual) : usual)),
          fmt::format("{}: {} {:.1f} ms, {} {:.1f} ms", choice.what, name_of(usual), usually,
                      name_of(other(usual)), otherwise)};
}

bool everywhere(bool here, Communicator& ranks) {
  double count = here;
  reduce_on_host(ranks, view_of(&count, {1}), "bf16 instructions");
  return count == ranks.size();
}

std::string complaint_about(const Decisions::Entry& entry, bool is_saved) {
  if (entry.value != "direct" && entry.value != "widened")
    return fmt::format("the checkpoint has {} = '{}', expected direct or widened: start with --redecide",
                       entry.name, entry.value);
  if (entry.value == "widened" || cpu::multiplies_bf16_directly()) return {};
  if (is_saved)
    return fmt::format(
        "the checkpoint's run used {} = direct, but this machine has no bf16 instructions: start with "
        "--redecide; results may then differ in the last bits",
        entry.name);
  return fmt::format("{} is direct, but this machine has no bf16 instructions: set it to auto or widened",
                     entry.name);
}

}  // namespace

std::vector<OpenDecision> open_cpu_products(const Experiment& e) {
  std::vector<OpenDecision> out;
  if (e.compute_capability || !gains(e) || !cpu::multiplies_bf16_directly()) return out;
  for (const Choice& choice : kChoices) {
    if (e.config.cpu.*choice.wish != Wish::automatic) continue;
    const Bf16Products usual = cpu::usual_products().*choice.way;
    OpenDecision& decision =
        out.emplace_back(OpenDecision{.name = choice.key, .by = "the time of each on the CPU"});
    for (Bf16Products way : {usual, other(usual)}) {
      decision.outcomes.push_back({std::string(name_of(way)), e.shape});
      decision.outcomes.back().shape.cpu_products.*choice.way = way;
    }
  }
  return out;
}

void settle_cpu_products(Experiment& e, Communicator& control, Device device, const Decisions& saved) {
  if (device.type != DeviceType::cpu || e.shape.parameters.compute != DType::bf16) return;
  const bool can_choose = gains(e) && everywhere(cpu::multiplies_bf16_directly(), control);
  for (const Choice& choice : kChoices) {
    const bool is_open = e.config.cpu.*choice.wish == Wish::automatic;
    Bf16Products& way = e.shape.cpu_products.*choice.way;
    const Decisions::Entry* before = is_open ? saved.find(choice.key) : nullptr;
    Decisions::Entry entry{choice.key, std::string(name_of(way)), "the configuration says so"};
    if (before) {
      entry = *before;
    } else if (is_open) {
      if (!can_choose) continue;
      Decisions mine;
      if (control.rank() == 0) mine.entries.push_back(measured(choice, e));
      entry = of_first_rank(mine, control).entries.front();
    }
    refuse_together(control, "cpu", complaint_about(entry, before != nullptr));
    if (!is_open) continue;
    e.decisions.entries.push_back(entry);
    way = entry.value == "direct" ? Bf16Products::direct : Bf16Products::widened;
    log_decision(entry, before != nullptr);
  }
}

void follow_cpu_products(const Decisions& decided, CpuConfig& config) {
  for (const Choice& choice : kChoices) {
    const Decisions::Entry* entry = decided.find(choice.key);
    if (!entry || config.*choice.wish != Wish::automatic) continue;
    if (entry->value != "direct" && entry->value != "widened")
      fail<ConfigError>("cpu", "{} was decided as '{}' ({}), expected direct or widened", choice.key,
                        entry->value, entry->reason);
    config.*choice.wish = entry->value == "direct" ? Wish::direct : Wish::widened;
  }
}

}  // namespace ottava
