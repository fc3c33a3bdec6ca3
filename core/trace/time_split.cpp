#include "core/trace/time_split.h"

#include <algorithm>
#include <vector>

namespace ottava {

TimeSplit split_time(std::span<const Interval> compute, std::span<const Interval> communication) {
  struct Edge {
    int64_t at;
    int computes, communicates;
  };
  std::vector<Edge> edges;
  for (const Interval& i : compute) edges.insert(edges.end(), {{i.begin, 1, 0}, {i.end, -1, 0}});
  for (const Interval& i : communication) edges.insert(edges.end(), {{i.begin, 0, 1}, {i.end, 0, -1}});
  std::ranges::sort(edges, {}, &Edge::at);
  TimeSplit out;
  int computes = 0, communicates = 0;
  for (size_t i = 0; i + 1 < edges.size(); ++i) {
    computes += edges[i].computes;
    communicates += edges[i].communicates;
    const int64_t length = edges[i + 1].at - edges[i].at;
    out.total += length;
    out.compute += computes > 0 ? length : 0;
    out.communication += communicates > 0 ? length : 0;
    out.overlapped += computes > 0 && communicates > 0 ? length : 0;
    out.idle += computes == 0 && communicates == 0 ? length : 0;
  }
  out.exposed = out.communication - out.overlapped;
  return out;
}

}  // namespace ottava
