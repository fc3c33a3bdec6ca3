#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/io/json.h"
#include "parallel/calls/comm_stats.h"

namespace ottava {

class DeviceClock;

/// One call of a communicator, or a group of calls that end together. Times are steady_nanoseconds(), 0 until
/// known.
struct CallRecord {
  enum class State : uint8_t { scheduled, started, completed };
  int64_t id = -1;       ///< counts up over all communicators of the rank
  int64_t sequence = 0;  ///< counts up on its axis
  int64_t step = 0;
  Collective collective = Collective::barrier;
  std::string axis, label;
  int group_size = 1, calls = 1;
  DType dtype = DType::f32;
  int64_t in_elements = 0, out_elements = 0;  ///< of this rank; of a group's first call
  int64_t payload_bytes = 0, sent_bytes = 0;  ///< as CommStats counts them, of all calls
  State state = State::scheduled;
  int64_t issued_ns = 0, began_ns = 0, ended_ns = 0;
};

/// The last calls of a rank, for traces and for reports after a failure. Always on: each call costs three
/// short locks, and allocates only for its texts. Safe to use from several threads.
class FlightRecorder {
 public:
  /// Keeps the last `capacity` calls (comm.trace_buf_size); 0 keeps none.
  void set_capacity(int64_t capacity);
  /// Records a call: sets id, sequence and issued_ns, and returns the id.
  int64_t issued(CallRecord record);
  /// Note the beginning and the end of a call, unless it is no longer kept. `at_ns` 0: now.
  void began(int64_t id, int64_t at_ns = 0);
  void ended(int64_t id, int64_t at_ns = 0);
  /// The calls whose id is at least `first`, oldest first.
  std::vector<CallRecord> records(int64_t first = 0) const;
  /// The id of the next call.
  int64_t next_id() const;

  /// While a clock is set, transports whose calls run on a device time them there, so that began_ns and
  /// ended_ns are the device's. Otherwise they say when the host noticed.
  void set_clock(std::shared_ptr<const DeviceClock> clock);
  std::shared_ptr<const DeviceClock> clock() const;

 private:
  CallRecord* find(int64_t id);

  mutable std::mutex mutex_;
  int64_t capacity_ = 20000, next_ = 0;
  std::vector<CallRecord> ring_;  ///< call `id` at id % capacity
  std::map<std::string, int64_t, std::less<>> sequences_;
  std::shared_ptr<const DeviceClock> clock_;
};

/// The calls under the names of PyTorch's flight recorder: {"version", "rank", "world_size", "reason",
/// "pg_config": {axis: {"size"}}, "entries": [{"record_id", "collective_seq_id", "profiling_name", "state",
/// "input_sizes", "output_sizes", "input_dtypes", "time_created_ns", ...}]}. Times are of this rank's steady
/// clock.
Json flight_record(const std::vector<CallRecord>& calls, int rank, int world_size, const std::string& reason);

}  // namespace ottava
