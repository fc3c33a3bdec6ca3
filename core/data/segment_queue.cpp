#include "core/data/segment_queue.h"

#include <numeric>

#include "core/data/chat/chat_encoder.h"
#include "core/data/whole_packing.h"
#include "core/log.h"
#include "core/stopwatch.h"
#include "core/threads/start_thread.h"

namespace ottava::data {

struct SegmentQueue::Item {
  Front front;
  PackedTokens packed;
  int64_t ready = 0;  // windows that may be copied
  bool done = false;
  std::exception_ptr error;
};

std::vector<int32_t> block_order(const Corpus& corpus, Order order, uint64_t seed, int64_t epoch) {
  if (order == Order::shuffled) return permutation(corpus.blocks(), block_stream(seed, epoch));
  std::vector<int32_t> identity(corpus.blocks());
  std::iota(identity.begin(), identity.end(), 0);
  return identity;
}

SegmentQueue::SegmentQueue(const Corpus& corpus, const DocumentEncoder& encoder, Options options,
                           SegmentPlace start)
    : corpus_(corpus), encoder_(encoder), options_(options), next_(start), last_started_(start) {
  order_ = block_order(corpus_, options_.order, options_.seed, next_.epoch);
  threads_.push_back(start_thread("data", "reads and tokenizes data", [this] { work(); }));
  try {
    for (int i = 1; i < options_.threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    log::warning("data: only {} of {} threads could be started (training.dataloader.num_workers): {}",
                 threads_.size(), options_.threads, error.what());
  }
}

SegmentQueue::~SegmentQueue() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void SegmentQueue::work() {
  Segment raw;
  for (;;) {
    std::shared_ptr<Item> item;
    {
      std::lock_guard source(source_mutex_);
      {
        std::unique_lock lock(mutex_);
        size_t limit = options_.threads + options_.ahead;
        changed_.wait(lock, [&] { return stopping_ || items_.size() < limit; });
        // After an error nothing more is read, since the consumer stops there.
        if (stopping_ || (!items_.empty() && items_.back()->error)) return;
      }
      item = read_next(raw);
      std::lock_guard lock(mutex_);
      last_started_ = item->front.place;
      items_.push_back(item);
      changed_.notify_all();
      if (item->error) return;
    }
    try {
      tokenize(*item, raw);
    } catch (...) {
      std::lock_guard lock(mutex_);
      item->error = std::current_exception();
      item->done = true;
      changed_.notify_all();
    }
  }
}

std::shared_ptr<SegmentQueue::Item> SegmentQueue::read_next(Segment& raw) {
  auto item = std::make_shared<Item>();
  try {
    if (!reader_) {
      if (next_.position == corpus_.blocks()) {
        next_ = {.epoch = next_.epoch + 1};
        order_ = block_order(corpus_, options_.order, options_.seed, next_.epoch);
      }
      reader_ = std::make_unique<BlockReader>(corpus_, order_[next_.position]);
      // Segments before the first are read, since they may be compressed, but not tokenized.
      for (int64_t skip = 0; skip < next_.segment; ++skip) reader_->next(raw);
    }
    item->front.place = next_;
    item->front.block = order_[next_.position];
    reader_->next(raw);
    item->front.last_of_block = reader_->finished();
    ++next_.segment;
    if (reader_->finished()) {
      reader_.reset();
      next_ = {.epoch = next_.epoch, .position = next_.position + 1};
    }
  } catch (...) {
    item->error = std::current_exception();
    item->done = true;
  }
  return item;
}

// Which conversations share a window depends on the lengths of all of them, so windows are ready together.
void SegmentQueue::pack_conversations(Item& item, const Segment& raw) {
  const Front& front = item.front;
  std::vector<std::vector<int32_t>> documents(raw.documents.size());
  std::string scratch;
  for (size_t d = 0; d < documents.size(); ++d) {
    encoder_.append(raw, raw.documents[d], documents[d], scratch);
    std::lock_guard lock(mutex_);
    if (stopping_) return;
  }
  WholePacking how{.seq_len = options_.seq_len, .pad_id = encoder_.encoder().chat->pad_id()};
  std::vector<int32_t> order;
  if (options_.order == Order::shuffled) {
    const PhiloxStream stream =
        document_stream(options_.seed, front.place.epoch, front.block, front.place.segment);
    order = permutation(std::ssize(documents), stream);
    how.order = order;
    how.windows = PhiloxStream{.seed = stream.word(0), .stream = stream.stream};
  }
  WholePacked whole = pack_whole(documents, how);
  std::lock_guard lock(mutex_);
  item.packed = std::move(whole.packed);
  item.ready = item.packed.windows(options_.seq_len);
  item.front.count = {.windows = item.ready,
                      .documents = whole.documents,
                      .tokens = whole.tokens,
                      .dropped = whole.dropped_tokens,
                      .bytes = std::ssize(raw.bytes),
                      .too_long = whole.too_long};
  item.done = true;
  changed_.notify_all();
}

void SegmentQueue::tokenize(Item& item, const Segment& raw) {
  if (encoder_.encoder().chat) return pack_conversations(item, raw);
  const Front& front = item.front;
  auto count = std::ssize(raw.documents);
  std::vector<int32_t> order;
  if (options_.order == Order::shuffled) {
    order = permutation(count,
                        document_stream(options_.seed, front.place.epoch, front.block, front.place.segment));
  }
  // Tokens are passed on a window or more at a time, so that the lock is taken rarely.
  PackedTokens fresh;
  std::string scratch;
  SegmentCount total{.bytes = std::ssize(raw.bytes)};
  enum class Rest { follows, none };
  auto hand_over = [&](Rest rest) {
    std::lock_guard lock(mutex_);
    auto base = std::ssize(item.packed.tokens);
    item.packed.tokens.insert(item.packed.tokens.end(), fresh.tokens.begin(), fresh.tokens.end());
    for (int64_t start : fresh.document_starts) item.packed.document_starts.push_back(base + start);
    fresh.tokens.clear();
    fresh.document_starts.clear();
    item.ready = item.packed.windows(options_.seq_len);
    if (rest == Rest::none) {
      total.tokens = std::ssize(item.packed.tokens);
      total.windows = item.ready;
      total.dropped = item.packed.dropped(options_.seq_len);
      item.front.count = total;
      item.done = true;
    }
    changed_.notify_all();
    return stopping_;
  };
  int64_t last = -1;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t d = order.empty() ? i : order[i];
    const Document& document = raw.documents[d];
    auto before = std::ssize(fresh.tokens);
    encoder_.append(raw, document, fresh.tokens, scratch);
    if (std::ssize(fresh.tokens) == before) continue;
    // A piece right after the one that it follows in its document continues that document here too.
    if (!document.goes_on || last != d - 1) fresh.document_starts.push_back(before);
    last = d;
    total.documents += !document.goes_on;
    if (std::ssize(fresh.tokens) > options_.seq_len && hand_over(Rest::follows)) return;
  }
  hand_over(Rest::none);
}

// Returns the front item once `window` of it is ready or it is done; rethrows its error.
SegmentQueue::Item& SegmentQueue::wait_for_front(std::unique_lock<std::mutex>& lock, int64_t window) {
  auto ready = [&] { return !items_.empty() && (items_.front()->done || items_.front()->ready > window); };
  if (!ready()) {
    const Stopwatch watch;
    changed_.wait(lock, ready);
    seconds_waited_ += watch.seconds();
  }
  Item& item = *items_.front();
  if (item.ready <= window && item.error) std::rethrow_exception(item.error);
  return item;
}

bool SegmentQueue::wait_for(int64_t window) {
  std::unique_lock lock(mutex_);
  return wait_for_front(lock, window).ready > window;
}

void SegmentQueue::copy_window(int64_t window, int32_t* inputs, int32_t* targets, int32_t* document_starts) {
  std::lock_guard lock(mutex_);
  items_.front()->packed.copy_window(window, options_.seq_len, inputs, targets, document_starts);
}

SegmentQueue::Front SegmentQueue::finish_front() {
  std::unique_lock lock(mutex_);
  return wait_for_front(lock, INT64_MAX).front;
}

void SegmentQueue::pop() {
  std::lock_guard lock(mutex_);
  items_.pop_front();
  changed_.notify_all();
}

int64_t SegmentQueue::buffer_bytes() const {
  std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (const auto& item : items_) {
    bytes += item->packed.tokens.capacity() * sizeof(int32_t) +
             item->packed.document_starts.capacity() * sizeof(int64_t);
  }
  return bytes;
}

SegmentPlace SegmentQueue::last_started() const {
  std::lock_guard lock(mutex_);
  return last_started_;
}

}  // namespace ottava::data
