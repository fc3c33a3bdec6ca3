#include "core/data/loader.h"

#include <chrono>
#include <set>
#include <tuple>
#include <utility>

#include "core/data/corpus.h"
#include "core/data/data_file.h"
#include "core/data/data_version.h"
#include "core/data/packing.h"
#include "core/data/segment_queue.h"
#include "core/data/window_index.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text/counted.h"
#include "core/threads/background_work.h"

namespace ottava::data {
namespace {

constexpr std::string_view kWhere = "data";
// How much of the index a killed run may lose.
constexpr std::chrono::seconds kSaveInterval{20};

void check_options(const LoaderOptions& o) {
  if (o.sources.empty()) fail<ConfigError>(kWhere, "no sources are given; set training.dataset_path");
  if (!o.encoder.encode || o.encoder.vocab_size < 1) fail<ConfigError>(kWhere, "no tokenizer is given");
  if (o.seq_len < 1 || o.seq_len > (1 << 28))
    fail<ConfigError>(kWhere, "seq_len is {}, expected 1 to 2^28", o.seq_len);
  if (o.threads < 1 || o.prefetch < 0) {
    fail<ConfigError>(kWhere, "threads is {}, prefetch {}; expected at least 1 and 0", o.threads, o.prefetch);
  }
  if (o.block_bytes.value_or(1) < 1 || o.max_text_bytes.value_or(1) < 1) {
    fail<ConfigError>(kWhere, "block_bytes and max_text_bytes must be at least 1");
  }
}

BlockSizes sizes_of(const LoaderOptions& o) {
  BlockSizes sizes = block_sizes(o.seq_len);
  return {o.block_bytes.value_or(sizes.block_bytes), o.max_text_bytes.value_or(sizes.max_text_bytes)};
}

bool before(const SegmentPlace& a, const SegmentPlace& b) {
  return std::tie(a.epoch, a.position, a.segment) < std::tie(b.epoch, b.position, b.segment);
}

}  // namespace

struct TokenLoader::State {
  explicit State(LoaderOptions o)
      : options((check_options(o), std::move(o))),
        corpus(find_data_files(options.sources, options.format, options.leaves_out), sizes_of(options)),
        encoder(corpus, options.encoder, options.text_key, options.bad_records),
        scan(corpus, options.encoder, options.text_key, options.bad_records),
        key{corpus, options.encoder, options.text_key, options.seq_len},
        index(options.index_folder, key.hash(IndexKey::Identity::files), corpus.blocks(),
              options.index_access) {}

  // The segment that holds a sample, as far as the index knows; else the first segment before it that is not
  // known.
  struct Located {
    SegmentPlace place;
    int64_t first_sample = 0;
  };
  Located locate(int64_t sample) {
    int64_t per_epoch = index.complete() ? index.total().windows : 0;
    if (index.complete() && per_epoch == 0) fail_empty();
    SegmentPlace place{.epoch = per_epoch > 0 ? sample / per_epoch : 0};
    int64_t first = place.epoch * per_epoch;
    for (int32_t block : block_order(corpus, options.order, options.seed, place.epoch)) {
      auto segments = index.find(block);
      if (!segments && (segments = count_stored(corpus, block, options.seq_len))) index.set(block, *segments);
      if (!segments) break;
      for (place.segment = 0; place.segment < std::ssize(*segments); ++place.segment) {
        int64_t windows = (*segments)[place.segment].windows;
        if (sample < first + windows) return {place, first};
        first += windows;
      }
      place = {.epoch = place.epoch, .position = place.position + 1};
    }
    // The last unknown blocks have just been counted, so the sample's epoch is now known.
    if (place.position == corpus.blocks()) return locate(sample);
    return {place, first};
  }

  void start(const Located& at) {
    if (queue) waited_before += queue->seconds_waited();
    queue.reset();
    collected.clear();
    queue = std::make_unique<SegmentQueue>(corpus, encoder,
                                           SegmentQueue::Options{options.seq_len, options.seed, options.order,
                                                                 options.threads, options.prefetch},
                                           at.place);
    front_first = next_sample = at.first_sample;
    position = at.place;
  }

  // Makes the front segment of the queue the one at or before `sample`.
  void seek(int64_t sample) {
    int64_t jump = sample - next_sample;
    if (!queue || sample < front_first) {
      start(locate(sample));
    } else if (jump > longest_jump) {
      // Ranks skip the samples of others in each step; only a jump longer than earlier ones may lead past
      // what is being prepared.
      Located at = locate(sample);
      if (before(queue->last_started(), at.place)) start(at);
      longest_jump = jump;
    }
  }

  // Decompressed text is about four times as large.
  double content_bytes() const {
    double bytes = 0;
    for (const DataFile& file : corpus.files())
      bytes += file.bytes * (file.compression == Compression::none ? 1 : 4);
    return bytes;
  }

  void note_left_out(const SegmentQueue::Front& front) {
    const bool is_new =
        front.count.too_long > 0 && too_long_of.emplace(front.block, front.place.segment).second;
    if (is_new) stats.too_long += front.count.too_long;
  }

  void retire_front() {
    SegmentQueue::Front front = queue->finish_front();
    stats.documents += front.count.documents;
    stats.tokens += front.count.tokens;
    stats.bytes += front.count.bytes;
    stats.dropped_tokens += front.count.dropped;
    note_left_out(front);
    front_first += front.count.windows;
    collected.push_back(front.count);
    if (front.last_of_block) {
      // A block that is entered in the middle is known already, or its middle could not have been found.
      if (std::ssize(collected) == front.place.segment + 1) index.set(front.block, std::move(collected));
      collected.clear();
      if (index.complete() && index.total().windows == 0) fail_empty();
      save_index_now_and_then();
    }
    queue->pop();
    position = front.place;
    ++position.segment;
  }

  // Retires the front segment on the way to `sample`. Epochs before it can be left out once every block is
  // known.
  void pass_front(int64_t sample) {
    const bool was_complete = index.complete();
    retire_front();
    if (was_complete || !index.complete()) return;
    if (sample - front_first >= index.total().windows) start(locate(sample));
  }

  // What is wrong with records that are to be skipped, if there are no others. Counts from reading cover
  // several epochs, and a kept index has none, so the data is looked at again.
  void refuse_bad_records() const {
    constexpr double kSeconds = 10;
    if (options.bad_records == BadRecords::error || index.total().documents > 0) return;
    const DataCheck check =
        DataScan(corpus, options.encoder, options.text_key, options.bad_records).look(kSeconds);
    if (check.bad_records == 0 || check.bad_records < check.documents) return;
    fail<DataError>(kWhere,
                    "{} has only bad records: {}{} skipped (training.bad_records: skip), the first: {}",
                    names_of_sources(options.sources), check.is_whole ? "" : "the first ",
                    counted(check.bad_records, "record is", "records are"), check.first_bad_record);
  }

  [[noreturn]] void fail_empty() const {
    refuse_bad_records();
    SegmentCount total = index.total();
    if (total.too_long > 0) {
      fail<DataError>(kWhere,
                      "no conversation of {} fits a window of seq_len + 1 = {} tokens, {} longer: raise {}",
                      names_of_sources(options.sources), options.seq_len + 1,
                      counted(total.too_long, "conversation is", "conversations are"), options.seq_len_key);
    }
    fail<DataError>(kWhere,
                    "the dataset is too small: {}: {} of {}, which make {} and {} in {}, none of which fills "
                    "a window of seq_len + 1 = {} tokens; use more text or a smaller {}",
                    names_of_sources(options.sources), counted(corpus.files().size(), "file"),
                    counted(corpus.bytes(), "byte"), counted(total.documents, "document"),
                    counted(total.tokens, "token"), counted(corpus.blocks(), "block"), options.seq_len + 1,
                    options.seq_len_key);
  }

  void save_index_now_and_then() {
    auto now = std::chrono::steady_clock::now();
    if (now - last_save < kSaveInterval || saving.is_busy()) return;
    last_save = now;
    // Flushing a file may take long; training does not wait for it.
    saving.start([this] { save_index_or_warn(); });
  }
  void save_index_or_warn() noexcept {
    try {
      index.save();
    } catch (const std::exception& error) {
      log::warning("{}: a resumed run will have to tokenize all data again", error.what());
    }
  }

  LoaderOptions options;
  Corpus corpus;
  DocumentEncoder encoder;
  DataScan scan;
  IndexKey key;
  WindowIndex index;
  std::string version;  // empty: not asked for yet
  std::unique_ptr<SegmentQueue> queue;
  int64_t front_first = 0;  // sample that is the front segment's first window
  int64_t next_sample = 0, longest_jump = 0;
  SegmentPlace position;
  std::vector<SegmentCount> collected;  // of the front block's finished segments
  DataStats stats;
  std::set<std::pair<int64_t, int64_t>> too_long_of;  // blocks and segments whose conversations are in stats
  double waited_before = 0;
  std::chrono::steady_clock::time_point last_save = std::chrono::steady_clock::now();
  BackgroundWork saving{"the index of the data"};  // last member: its thread uses the others
};

TokenLoader::TokenLoader(LoaderOptions options) : state_(std::make_unique<State>(std::move(options))) {}

TokenLoader::~TokenLoader() {
  state_->queue.reset();
  state_->save_index_or_warn();
}

void TokenLoader::start(int64_t first_sample) { state_->seek(first_sample); }

void TokenLoader::read(int64_t first_sample, int64_t count, const TokenBatch& out) {
  State& s = *state_;
  if (first_sample < 0 || count < 0)
    fail<DataError>(kWhere, "samples {} and {} more are asked for", first_sample, count);
  if (count == 0) return;
  s.seek(first_sample);
  for (int64_t i = 0; i < count; ++i) {
    while (!s.queue->wait_for(first_sample + i - s.front_first)) s.pass_front(first_sample + i);
    // All windows of conversations are ready together, and with them what fitted none.
    if (s.options.encoder.chat) s.note_left_out(s.queue->finish_front());
    int64_t at = i * s.options.seq_len;
    s.queue->copy_window(first_sample + i - s.front_first, out.inputs + at, out.targets + at,
                         out.document_starts ? out.document_starts + at : nullptr);
  }
  s.next_sample = first_sample + count;
}

int64_t TokenLoader::count_samples() {
  State& s = *state_;
  if (!s.index.complete()) {
    const State::Located unknown = s.locate(INT64_MAX / 2);  // this counts shards
    if (!s.index.complete()) s.start(unknown);
    while (!s.index.complete()) s.retire_front();
    s.save_index_or_warn();
    s.queue.reset();  // what is read next is elsewhere
  }
  if (s.index.total().windows == 0) s.fail_empty();
  return s.index.total().windows;
}

double TokenLoader::estimate_samples() {
  State& s = *state_;
  if (s.index.complete()) return count_samples();
  SegmentCount known = s.index.total();
  if (known.windows == 0) {
    if (!s.queue) s.start(s.locate(0));
    known = s.queue->finish_front().count;
  }
  if (known.windows == 0) return count_samples();
  return static_cast<double>(known.windows) / known.bytes * s.content_bytes();
}

std::optional<int64_t> TokenLoader::samples_per_epoch() const {
  if (!state_->index.complete()) return std::nullopt;
  return state_->index.total().windows;
}

DataStats TokenLoader::stats() const {
  DataStats stats = state_->stats;
  const SegmentPlace& at = state_->position;
  stats.epochs = static_cast<double>(at.epoch) + static_cast<double>(at.position) / state_->corpus.blocks();
  stats.bad_records = state_->encoder.bad_records();
  stats.first_bad_record = state_->encoder.first_bad_record();
  stats.joined_completions = state_->encoder.joined_completions();
  stats.buffer_bytes = state_->queue ? state_->queue->buffer_bytes() : 0;
  stats.seconds_waited = state_->waited_before + (state_->queue ? state_->queue->seconds_waited() : 0);
  return stats;
}

SegmentCount TokenLoader::known() const { return state_->index.total(); }
const LoaderOptions& TokenLoader::options() const { return state_->options; }
const Corpus& TokenLoader::corpus() const { return state_->corpus; }
DataScan& TokenLoader::scan() { return state_->scan; }
const std::string& TokenLoader::version() {
  if (state_->version.empty()) state_->version = version_of(state_->corpus.files());
  return state_->version;
}
uint64_t TokenLoader::fingerprint() const { return state_->key.hash(IndexKey::Identity::content); }

}  // namespace ottava::data
