#pragma once

namespace ottava {

/// Seconds for which the threads of this thread's loops (parallel_for.h), together, were ready to run since
/// they exist, but had no core: others had them, or a container's share was used up. Threads that wait for
/// each other do not count, however much faster some cores are than others. Only a difference of two calls
/// means something. Where Linux does not say it (CONFIG_SCHED_INFO), the seconds in which threads did not
/// compute, since some moment, whatever the reason.
double seconds_without_core();

}  // namespace ottava
