#include "core/data/data_check.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <numeric>
#include <system_error>
#include <utility>

#include "core/io/utf8.h"
#include "core/log.h"

namespace ottava::data {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRestPerWork = 9;

// Steps of this length visit every block, and any few consecutive ones are far apart.
int64_t stride_of(int64_t blocks) {
  int64_t stride = std::max<int64_t>(blocks * 618 / 1000, 1);
  while (std::gcd(stride, blocks) != 1) ++stride;
  return stride;
}

}  // namespace

DataScan::DataScan(const Corpus& corpus, TextEncoder encoder, std::string text_key, BadRecords bad_records)
    : corpus_(corpus),
      encoder_(corpus, std::move(encoder), std::move(text_key), bad_records),
      stride_(stride_of(corpus.blocks())) {}

DataScan::~DataScan() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void DataScan::look_at_segment(DataCheck& check) {
  if (!reader_) reader_.emplace(corpus_, block_ * stride_ % corpus_.blocks());
  reader_->next(segment_);
  check.bytes += std::ssize(segment_.bytes);
  const bool counts_pieces = !corpus_.knows_documents();
  for (const Document& document : segment_.documents) {
    check.documents += counts_pieces || !document.goes_on;
    const std::optional<std::string_view> text = encoder_.check(segment_, document, scratch_);
    check.text_bytes += text ? std::ssize(*text) : 0;
    if (!text || well_formed_end(*text, 0) == text->size()) continue;
    if (++check.ill_formed == 1) check.first_ill_formed = encoder_.place(document);
  }
  if (reader_->finished()) {
    reader_.reset();
    check.is_whole = ++block_ == corpus_.blocks();
  }
  check.bad_records = encoder_.bad_records();
  check.first_bad_record = encoder_.first_bad_record();
}

DataCheck DataScan::look(double seconds) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  DataCheck check = progress().found;
  const int64_t before = check.bytes;
  while (!check.is_whole && (check.bytes == before || Clock::now() < end)) look_at_segment(check);
  std::lock_guard lock(mutex_);
  return progress_.found = check;
}

void DataScan::look_at_the_rest() {
  if (thread_.joinable() || progress().found.is_whole) return;
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error& error) {
    log::warning("data that training has not reached is not looked through: no thread can be started ({})",
                 error.code().message());
  }
}

void DataScan::work() {
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19);
  for (;;) {
    const auto begin = Clock::now();
    try {
      if (look(0).is_whole) return;
    } catch (const std::exception& error) {
      std::lock_guard lock(mutex_);
      progress_.problem = error.what();
      return;
    }
    std::unique_lock lock(mutex_);
    if (stop_.wait_for(lock, (Clock::now() - begin) * kRestPerWork, [&] { return stopping_; })) return;
  }
}

DataScan::Progress DataScan::progress() const {
  std::lock_guard lock(mutex_);
  return progress_;
}

}  // namespace ottava::data
