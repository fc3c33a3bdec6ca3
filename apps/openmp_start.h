#pragma once

namespace ottava {

/// What OpenMP's runtime has read before main() and the program needs otherwise; the program executes itself
/// once more with it. To be called while there is only one thread.
///
/// Threads spin only for a short while before they sleep, unless the user has set OMP_WAIT_POLICY or
/// GOMP_SPINCOUNT. A spinning thread keeps its core from the thread that it waits for; beside other busy
/// processes this makes two threads slower than one (core/README.md has the figures).
///
/// Threads are bound to no place, whatever OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY say, but the
/// process keeps to the CPUs of the places together. libgomp binds the first thread before main(), and what
/// it starts inherits that: ranks, and the program started again, would have that one CPU. Variable
/// kOmpBinding then has what they said.
///
/// If the program cannot execute itself, it says so and goes on.
void settle_openmp(char** argv);

}  // namespace ottava
