#pragma once

namespace ottava {

/// Makes OpenMP's threads spin only for a short while before they sleep, unless the user has set
/// OMP_WAIT_POLICY or GOMP_SPINCOUNT. A spinning thread keeps its core from the thread that it waits for;
/// beside other busy processes this makes two threads slower than one (core/README.md has the figures).
/// libgomp reads these variables before main(), so the program executes itself once more with GOMP_SPINCOUNT
/// set; if that fails, it says so and goes on. To be called while there is only one thread.
void settle_wait_policy(char** argv);

}  // namespace ottava
