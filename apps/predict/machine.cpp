#include "apps/predict/machine.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/contains.h"

namespace ottava {
namespace {

bool is_product(const RecordedOperation& o) { return o.op == "matmul" || o.op == "scaled_matmul"; }
bool is_attention(const RecordedOperation& o) { return o.op.starts_with("attention"); }
bool updates_in_place(const RecordedOperation& o) { return o.op == "adamw"; }

constexpr double kTileRows = 128, kTileColumns = 256;

/// The peak of a precision, and the part of it that products reach.
struct Rate {
  double peak_tflops = 0, part = 0;
  double flops_per_second() const { return peak_tflops * 1e12 * part; }
};
Rate rate_of(const DeviceTable& d, Precision precision) {
  if (precision == Precision::bf16) return {d.bf16_tflops, d.gemm_bf16};
  if (precision != Precision::fp8) return {d.fp32_tflops, d.gemm_fp32};
  if (d.fp8_tflops > 0) return {d.fp8_tflops, d.gemm_fp8};
  return {d.bf16_tflops, d.is_gpu() ? d.gemm_bf16 : d.gemm_fp8};
}

/// What tiles leave of a product's peak, and what its parts have to move.
struct TiledProduct {
  double efficiency = 1;
  double partial_bytes = 0;  ///< f32 sums of parts, written and read
};

// By how full the last wave of tiles is and how long the inner loop of each of the parts is.
double efficiency_of(double tiles, double inner, double sms) {
  return tiles / (std::ceil(tiles / sms) * sms) * inner / (inner + 256);
}

// A product with fewer tiles than there are multiprocessors is divided along its inner dimension, as
// libraries do. `bytes_per_flop`: what could be moved through the L2 cache while a FLOP is done at the peak.
TiledProduct tiled_product(const RecordedOperation& o, double sms, double bytes_per_flop) {
  const ProductExtents e = product_extents(o);
  if (sms == 0 || e.inner == 0) return {};
  const double tiles = std::ceil(static_cast<double>(e.rows) / kTileRows) *
                       std::ceil(static_cast<double>(e.columns) / kTileColumns);
  const auto inner = static_cast<double>(e.inner);
  TiledProduct best{efficiency_of(tiles, inner, sms), 0};
  double least = o.flops / best.efficiency;
  for (double parts = 2; parts * tiles <= sms; ++parts) {
    const TiledProduct split{efficiency_of(parts * tiles, inner / parts, sms),
                             parts * 2 * sizeof(float) * static_cast<double>(e.rows * e.columns)};
    const double flops = o.flops / split.efficiency + split.partial_bytes / bytes_per_flop;
    if (flops < least) best = split, least = flops;
  }
  return best;
}

// Operands in bf16 are read, and written in f32.
double widened_bytes(const ProductExtents& e) {
  return static_cast<double>((e.rows + e.columns) * e.inner) *
         static_cast<double>(size_of(DType::bf16) + size_of(DType::f32));
}

// What of a product does not grow with tokens and comes from memory beside multiplying, because the rest of
// the step was in the caches meanwhile: its weights, or their gradient. For few tokens this takes most of the
// time. Operands that are widened are copied from there already.
double cold_bytes(const RecordedOperation& o, bool is_widened) {
  const ProductExtents e = product_extents(o);
  if (e.inner == 0) return 0;
  const auto size = static_cast<double>(size_of(o.call.tensors[0].dtype));
  if (o.variant == "weight gradient") return std::max(0.0, o.bytes - (e.rows + e.columns) * e.inner * size);
  return is_widened ? 0 : e.columns * e.inner * size;
}

struct AttentionShape {
  double width = 128, heads_of_key = 1, tokens = 1e9;
};
AttentionShape attention_shape(const RecordedOperation& o) {
  const std::vector<Tensor>& tensors = o.call.tensors;
  const auto lse = std::ranges::find_if(tensors, [](const Tensor& t) { return t.shape.rank() == 3; });
  if (lse == tensors.end() || tensors.size() < 2) return {};
  const auto heads = static_cast<double>(lse->shape[1]), width = tensors[1].cols() / heads;
  const double keys = std::max(1.0, (tensors[0].cols() / width - heads) / 2);
  return {width, heads / keys, static_cast<double>(lse->shape[2])};
}

// Of cuDNN's rate at head width 128: its tiles have 64 columns at least, so that narrower heads take as long.
double cudnn_part_at(double width) {
  return std::pow(std::min(1.0, std::max(width, 64.0) / 128), 0.45) * std::min(1.0, width / 64);
}

// FLOPs of our kernels for each FLOP at the FP32 peak while exponentials bound them: forward has one of them,
// and 4 FLOPs per column of the head, for a pair of positions, backward two and 10. A multiprocessor does one
// while it does 16 FLOPs, and of that an H200 came to 0.45 at head widths 16 and 32.
double exponentials_allow(double width, bool backward) {
  constexpr double kPart = 0.45;
  return kPart * (backward ? 5 : 4) * width / 16;
}

// What a CPU multiplies for each score that is seen: tiles of 128 rows of scores are whole at the diagonal.
double tiles_at_diagonal(const AttentionShape& shape) {
  const double rows = std::max(16.0, std::floor(128 / shape.heads_of_key));
  return 1 + (std::min(rows, shape.tokens) - 1) / (shape.tokens + 1);
}

// The part of the peak that attention reaches.
double attention_part(const Machine& m, const RecordedOperation& o, double peak_tflops) {
  const DeviceTable& d = m.device;
  const bool backward = o.op == "attention_backward";
  double part = m.has_cudnn_attention ? (backward ? d.cudnn_backward : d.cudnn_forward)
                                      : (backward ? d.attention_backward : d.attention_forward);
  const AttentionShape shape = attention_shape(o);
  const double width = shape.width, softmax = backward ? d.softmax_backward : d.softmax_forward;
  if (softmax > 0) {
    // Where it is known what softmax costs beside the products, one comes after the other.
    part = 1 / (1 / part + softmax / width * peak_tflops / d.fp32_tflops);
  } else if (m.has_cudnn_attention) {
    part *= cudnn_part_at(width);
  } else if (d.is_gpu()) {
    part = std::min(part, exponentials_allow(width, backward) * d.fp32_tflops / peak_tflops);
  }
  return d.is_gpu() ? part : part / tiles_at_diagonal(shape);
}

}  // namespace

std::string class_of(const RecordedOperation& o) {
  if (is_product(o)) return fmt::format("products {}", name_of(o.precision));
  if (is_attention(o)) return "attention";
  constexpr std::array<std::string_view, 4> kOptimizer = {"adamw", "grad_norm_squared", "clip_factor",
                                                          "skip_spike"};
  if (contains(kOptimizer, o.op) || o.op.starts_with("muon_")) return "optimizer";
  if (o.op.starts_with("cross_entropy")) return "loss";
  constexpr std::array<std::string_view, 13> kQuantize = {"quantize",
                                                          "dequantize",
                                                          "amax",
                                                          "column_amax",
                                                          "transpose_codes",
                                                          "transpose_block_scales",
                                                          "fold_amax",
                                                          "flag_non_finite",
                                                          "poison_if_raised",
                                                          "tile_scales",
                                                          "untile_scales",
                                                          "delayed_amax",
                                                          "advance_amax_history"};
  return contains(kQuantize, o.op) ? "quantize" : "elementwise";
}

PredictedTime Machine::time_of(const RecordedOperation& o) const {
  if (const auto known = measured.find(o)) return *known;
  constexpr double kCacheRate = 2;  // of the L2 cache, to the memory's: assumed
  const double memory_rate = device.memory_gb_per_s * 1e9 * device.memory_efficiency,
               cache_rate = kCacheRate * memory_rate;
  Rate rate = rate_of(device, o.precision);
  double sums = 0, weights = 0, copies = 0;
  if (is_attention(o)) rate.part = attention_part(*this, o, rate.peak_tflops);
  if (is_product(o)) {
    const TiledProduct tiled = tiled_product(o, device.sms, cache_rate / rate.flops_per_second());
    const bool is_widened = widens_bf16 && o.precision == Precision::bf16;
    rate.part *= tiled.efficiency;
    sums = tiled.partial_bytes / cache_rate;
    if (is_widened) copies = widened_bytes(product_extents(o)) / memory_rate;
    if (device.gemm_weights > 0) weights = cold_bytes(o, is_widened) / (memory_rate * device.gemm_weights);
  }
  const double compute = o.flops > 0 ? o.flops / rate.flops_per_second() + sums : 0;
  const double memory =
      o.bytes / (updates_in_place(o) && update_gb_per_s > 0 ? update_gb_per_s * 1e9 : memory_rate);
  return {std::max(compute + weights, memory) + copies + device.launch_us * 1e-6, TimeSource::table};
}

namespace {

bool is_message(const RecordedTransfer::Call& call) {
  return call.collective == "send" || call.collective == "recv";
}

/// Messages as an exchange of all with all, both directions at once: those of a pipeline and of tensor
/// parallel go to one neighbour and come from one, those of Muon go to the owners of matrices, which are all
/// ranks.
RecordedTransfer as_exchange(const RecordedTransfer& transfer) {
  int64_t sent = 0, received = 0;
  for (const RecordedTransfer::Call& call : transfer.calls)
    (call.collective == "send" ? sent : received) += call.payload_bytes;
  const int64_t most = std::max(sent, received);
  RecordedTransfer out = transfer;
  if (transfer.axis == "pp" || transfer.axis == "tp") out.ranks = 2;
  out.calls = {{"all_to_all", transfer.calls[0].label, most * out.ranks / (out.ranks - 1), most}};
  return out;
}

}  // namespace

double Machine::seconds_of(const RecordedTransfer& transfer) const {
  if (transfer.ranks == 1) return 0;
  if (!transfer.calls.empty() && is_message(transfer.calls[0])) return seconds_of(as_exchange(transfer));
  const int here = std::clamp(ranks_per_node / std::max(transfer.stride, 1), 1, transfer.ranks);
  const int machines = (transfer.ranks + here - 1) / here;
  const bool twice = !transfer.calls.empty() && transfer.calls[0].collective == "all_reduce";
  const double rounds = twice ? 2 : 1;
  const double within = transfer.sent_bytes() / (device.link_gb_per_s * 1e9);
  double between = 0;
  if (machines > 1 && !transfer.calls.empty() && transfer.calls[0].collective == "all_to_all") {
    // Nothing of it is for two ranks: what goes to other machines goes through each rank's own adapter.
    between = transfer.payload_bytes() * network.fabric * (transfer.ranks - here) / transfer.ranks /
              (network.nic_gb_per_s * 1e9 * network.efficiency);
  } else if (machines > 1) {
    between = rounds * transfer.payload_bytes() * network.fabric /
              (here * network.nic_gb_per_s * 1e9 * network.efficiency);
  }
  const double hops = device.link_hop_us * (transfer.ranks - machines) + network.hop_us * (machines - 1);
  return (here > 1 ? std::max(within, between) : between) + (device.link_base_us + rounds * hops) * 1e-6;
}

}  // namespace ottava
