#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <vector>

namespace ottava {

/// Spans of what host threads do beside the operations of a step: reading, saving, the step as a whole. Safe
/// to use from several threads.
class HostSpans {
 public:
  enum class Track : uint8_t { host, data, saves };
  struct Span {
    Track track;
    std::string name;
    int64_t begin_ns = 0, end_ns = 0;  ///< steady_nanoseconds()
  };

  /// Adds a span while it lives; nothing where `spans` is null.
  class Scope {
   public:
    Scope(HostSpans* spans, Track track, std::string name);
    ~Scope();
    Scope(const Scope&) = delete;

   private:
    HostSpans* spans_;
    std::list<Span>::iterator span_;
  };

  /// Spans that did not end before `begin_ns`, in the order in which they began; one still open ends now.
  std::vector<Span> since(int64_t begin_ns) const;
  /// Drops all spans that have ended.
  void forget_ended();

 private:
  mutable std::mutex mutex_;
  std::list<Span> spans_;
};

}  // namespace ottava
