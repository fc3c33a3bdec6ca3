#pragma once

namespace ottava {

/// Makes OpenMP's threads spin only for a short while before they sleep, unless the user has set
/// OMP_WAIT_POLICY or GOMP_SPINCOUNT. A thread that spins keeps its core from the one that it waits for,
/// which beside other busy processes makes two threads slower than one (core/README.md has the figures).
/// libgomp reads these variables before main(), so the program executes itself once more with GOMP_SPINCOUNT
/// set; where that fails, it says so and goes on as it is. To be called while there is one thread.
void settle_wait_policy(char** argv);

}  // namespace ottava
