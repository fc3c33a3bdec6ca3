#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/data/corpus.h"
#include "core/data/order.h"
#include "core/data/packing.h"
#include "core/data/window_index.h"

namespace ottava::data {

/// The place of a segment in the order of training: the epoch, the block's position in it, and the number of
/// the segment in the block.
struct SegmentPlace {
  int64_t epoch = 0, position = 0, segment = 0;
};

/// Segments in the order of training, read, tokenized and packed by background threads, a few ahead of the
/// consumer. Segments are read one after the other (a compressed file can be read in no other way, and
/// reading is 50 times faster than tokenizing) but tokenized in parallel. The result depends neither on
/// threads nor on timing. The front segment can be used while its later windows are still being made, so
/// training starts after its first documents. There is one consumer thread. An exception of a background
/// thread is thrown when the consumer reaches that segment.
class SegmentQueue {
 public:
  struct Options {
    int64_t seq_len = 0;
    uint64_t seed = 0;
    Order order = Order::shuffled;
    int threads = 1;
    int ahead = 1;  ///< segments kept ready beyond those in work
  };
  SegmentQueue(const Corpus& corpus, const DocumentEncoder& encoder, Options options, SegmentPlace start);
  ~SegmentQueue();

  struct Front {
    SegmentPlace place;
    int64_t block = 0;
    bool last_of_block = false;
    SegmentCount count;  ///< valid once it is finished
  };
  /// Waits until window `window` of the front segment is ready; returns false if the segment turns out to be
  /// shorter.
  bool wait_for(int64_t window);
  /// A ready window of the front segment.
  void copy_window(int64_t window, int32_t* inputs, int32_t* targets, int32_t* document_starts);
  /// The front segment; waits until it is finished.
  Front finish_front();
  void pop();
  /// The last segment whose tokenizing has started.
  SegmentPlace last_started() const;
  double seconds_waited() const { return seconds_waited_; }
  /// Bytes of the tokens that are held.
  int64_t buffer_bytes() const;

 private:
  struct Item;
  void work();
  std::shared_ptr<Item> read_next(Segment& raw);
  void tokenize(Item& item, const Segment& raw);
  void pack_conversations(Item& item, const Segment& raw);
  Item& wait_for_front(std::unique_lock<std::mutex>& lock, int64_t window);

  const Corpus& corpus_;
  const DocumentEncoder& encoder_;
  Options options_;

  std::mutex source_mutex_;  // guards what is read next
  SegmentPlace next_;
  std::vector<int32_t> order_;
  std::unique_ptr<BlockReader> reader_;

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Item>> items_;
  SegmentPlace last_started_;
  bool stopping_ = false;
  double seconds_waited_ = 0;
  std::vector<std::thread> threads_;
};

/// Blocks of an epoch in the order of training.
std::vector<int32_t> block_order(const Corpus& corpus, Order order, uint64_t seed, int64_t epoch);

}  // namespace ottava::data
