#include "fiber.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "sanitizer.h"

extern "C" void ottava_cuda_host_switch(void** save, void* resume);

// System V AMD64: six callee-saved registers, then the return address.
asm(R"(.text
.globl ottava_cuda_host_switch
.type ottava_cuda_host_switch, @function
ottava_cuda_host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size ottava_cuda_host_switch, .-ottava_cuda_host_switch
)");

namespace ottava::cuda_host {
namespace {
constexpr size_t kGuardBytes = 4096;
}

void create_fiber(Fiber& fiber, size_t stack_bytes, void (*entry)()) {
  void* mapping = mmap(nullptr, stack_bytes + kGuardBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED || mprotect(mapping, kGuardBytes, PROT_NONE) != 0) {
    std::perror("cuda_host: no memory for a thread's stack");
    std::abort();
  }
  fiber.stack = static_cast<char*>(mapping) + kGuardBytes;
  fiber.stack_bytes = stack_bytes;
  reset_fiber(fiber, entry, 0);
}

void reset_fiber(Fiber& fiber, void (*entry)(), size_t color) {
  unpoison(fiber.stack, fiber.stack_bytes);
  if (fiber.identity) destroy_identity(fiber.identity);
  fiber.identity = make_identity();
  fiber.fake_stack = nullptr;
  // After the switch's `ret` into entry() the stack pointer must be 8 modulo 16, as after a call.
  void** top = reinterpret_cast<void**>(fiber.stack + fiber.stack_bytes - 64 * (1 + color % 16));
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fiber.stack_pointer = top;
}

void adopt_this_thread(Fiber& fiber) {
  static thread_local void* stack = nullptr;
  static thread_local size_t bytes = 0;
  if (!stack) {  // slow on the main thread: it reads /proc/self/maps
    pthread_attr_t attributes;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &stack, &bytes);
    pthread_attr_destroy(&attributes);
  }
  fiber.stack = static_cast<char*>(stack);
  fiber.stack_bytes = bytes;
  fiber.identity = current_identity();
}

void switch_fiber(Fiber& from, Fiber& to) {
  start_switch(&from.fake_stack, to.stack, to.stack_bytes);
  become(to.identity);
  ottava_cuda_host_switch(&from.stack_pointer, to.stack_pointer);
  finish_switch(from.fake_stack);
}

void fiber_entered() { finish_switch(nullptr); }

}  // namespace ottava::cuda_host
