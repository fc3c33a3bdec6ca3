#pragma once

#include <cstddef>

namespace ottava::cuda_host {

/// A stack with a saved point of execution. Switching costs about 15 instructions: no system call, no signal
/// mask.
struct Fiber {
  void* stack_pointer = nullptr;
  char* stack = nullptr;  ///< lowest usable byte; the page below it is not accessible
  size_t stack_bytes = 0;
  void* fake_stack = nullptr;  ///< address sanitizer's
  void* identity = nullptr;    ///< thread sanitizer's
};

/// Maps the stack and prepares the fiber to start in entry(), which must never return.
void create_fiber(Fiber& fiber, size_t stack_bytes, void (*entry)());
/// Makes it start in entry() again, whatever it was doing; `color` staggers stacks over cache sets.
void reset_fiber(Fiber& fiber, void (*entry)(), size_t color);
/// Describes the calling OS thread, so that fibers can switch back to it.
void adopt_this_thread(Fiber& fiber);
void switch_fiber(Fiber& from, Fiber& to);
/// Must be called first in entry().
void fiber_entered();

}  // namespace ottava::cuda_host
