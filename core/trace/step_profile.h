#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/stream.h"

namespace ottava {

/// Now, on the host's steady clock, to which all times in a trace refer.
int64_t steady_nanoseconds();

/// Places events of a device on the host's steady clock. The two clocks drift apart by some microseconds per
/// second, so make a new one for each stretch that is traced.
class DeviceClock {
 public:
  /// Waits for the stream; both clocks are read where its work ends.
  explicit DeviceClock(Stream& stream);
  /// `event` must have been reached.
  int64_t nanoseconds_of(const Event& event) const;

 private:
  Event base_;
  int64_t nanoseconds_ = 0;
};

/// What a rank's step does on one stream, as nested spans between events on it. On a GPU they show the
/// device's time, not the time the host took to enqueue the work. On `meta`, where nothing takes time, they
/// hold what is planned.
class StepProfile {
 public:
  /// Whether spans are also ranges of NVTX (nvtx.h).
  enum class Ranges : uint8_t { none, nvtx };
  explicit StepProfile(Stream& stream, Ranges ranges = Ranges::none) : stream_(stream), ranges_(ranges) {}

  enum class Kind : uint8_t {
    pass,       ///< a micro-batch, a block: what operations belong to
    operation,  ///< a label of the benchmark's table: "attention.wqkv"
    wait,       ///< for the end of a call between ranks; its label is the flight recorder's id of the call
  };
  void enter(std::string_view label, Kind kind = Kind::operation);
  void leave();

  struct Span {
    std::string label;
    Kind kind = Kind::operation;
    int parent = -1;                        ///< index of the span around it
    int64_t begin_ns = 0, end_ns = 0;       ///< on the host's clock, by DeviceClock; not on `meta`
    double flops = 0, bytes = 0;            ///< planned, including inner spans; only on `meta`
    size_t first_event = 0, end_event = 0;  ///< of RecordedOrder::events; only on `meta`
  };
  /// Spans since the last call, in the order in which they began. Waits for the stream.
  std::vector<Span> take_spans(const DeviceClock& clock);

  /// Seconds by label of the operations since the last take_spans(), waiting included. An operation inside
  /// another counts once, for the inner one. Waits for the stream.
  std::map<std::string, double, std::less<>> seconds();

  /// Adds a span while it lives; nothing where `profile` is null.
  class Scope {
   public:
    Scope(StepProfile* profile, std::string_view label, Kind kind = Kind::operation) : profile_(profile) {
      if (profile_) profile_->enter(label, kind);
    }
    ~Scope() {
      if (profile_) profile_->leave();
    }
    Scope(const Scope&) = delete;

   private:
    StepProfile* profile_;
  };

 private:
  struct Mark {
    Event at;
    double flops = 0, bytes = 0;  ///< recorded so far; on `meta`
    size_t events = 0;            ///< the same
  };
  struct Opened {
    std::string label;
    Kind kind;
    int parent;
    size_t begin, end;  ///< marks
  };
  size_t mark();

  Stream& stream_;
  Ranges ranges_;
  std::vector<Mark> marks_;
  std::vector<Opened> spans_;
  int open_ = -1;  ///< the innermost
};

}  // namespace ottava
