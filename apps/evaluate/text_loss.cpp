#include "apps/evaluate/text_loss.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "core/data/chat/masked_token.h"
#include "core/text/counted.h"

namespace ottava {

using Tokens = std::vector<int32_t>;

double TextLoss::loss() const { return nats / static_cast<double>(tokens); }
double TextLoss::perplexity() const { return std::exp(loss()); }
double TextLoss::bits_per_byte() const { return nats / std::numbers::ln2 / static_cast<double>(bytes); }

std::vector<Tokens> text_windows(const Tokens& document, int64_t length) {
  std::vector<Tokens> out;
  for (int64_t done = 1; done < std::ssize(document);) {
    const int64_t end = std::min<int64_t>(done + length, std::ssize(document)),
                  begin = std::max<int64_t>(0, end - (length + 1));
    Tokens window(document.begin() + begin, document.begin() + end);
    for (int64_t i = 0; i < done - begin; ++i) window[i] = data::masked(window[i]);
    out.push_back(std::move(window));
    done = end;
  }
  return out;
}

void add_documents(const std::vector<Tokens>& documents, int64_t window, const TokenLosses& model,
                   TextLoss& to) {
  std::vector<Tokens> windows;
  for (const Tokens& document : documents) {
    if (document.size() < 2) continue;
    ++to.documents;
    to.tokens += std::ssize(document) - 1;
    for (Tokens& part : text_windows(document, window)) windows.push_back(std::move(part));
  }
  const std::vector<double> sums = losses_of_documents(
      data::pack_whole(windows, {.seq_len = model.sequence, .share_windows = model.share_windows}),
      windows.size(), model);
  to.nats = std::accumulate(sums.begin(), sums.end(), to.nats);
}

std::string to_text(const TextLoss& l) {
  return fmt::format("{}: loss {:.4f}, perplexity {:.2f}, bits per byte {:.4f} ({} and {} of {})", l.name,
                     l.loss(), l.perplexity(), l.bits_per_byte(), counted(l.tokens, "token"),
                     counted(l.bytes, "byte"), counted(l.documents, "document"));
}

}  // namespace ottava
