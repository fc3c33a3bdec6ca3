#pragma once

// What the layer tells the sanitizers, as functions that do nothing in other builds. Sources that include
// this are compiled without instrumentation (their own data must not be watched), so the build says which
// sanitizer is on.

#include <cstddef>

#if defined(OTTAVA_CUDA_HOST_ADDRESS)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(OTTAVA_CUDA_HOST_THREAD)
#include <sanitizer/tsan_interface.h>
extern "C" void __tsan_ignore_thread_begin();
extern "C" void __tsan_ignore_thread_end();
#endif

namespace ottava::cuda_host {

// --- thread sanitizer: an identity is a thread of control as the race detector sees it. `become` switches
// without creating an order; order exists only between a release and a later acquire of the same address.
#if defined(OTTAVA_CUDA_HOST_THREAD)
inline constexpr bool kThreadSanitizer = true;
inline void* make_identity() { return __tsan_create_fiber(0); }
inline void destroy_identity(void* identity) { __tsan_destroy_fiber(identity); }
inline void* current_identity() { return __tsan_get_current_fiber(); }
inline void become(void* identity) { __tsan_switch_to_fiber(identity, 1); }
inline void acquire(void* object) { __tsan_acquire(object); }
inline void release(void* object) { __tsan_release(object); }
/// What libc reads and writes in between is the layer's own, as if libc were not watched either.
inline void ignore_begin() { __tsan_ignore_thread_begin(); }
inline void ignore_end() { __tsan_ignore_thread_end(); }
#else
inline constexpr bool kThreadSanitizer = false;
inline void* make_identity() { return nullptr; }
inline void destroy_identity(void*) {}
inline void* current_identity() { return nullptr; }
inline void become(void*) {}
inline void acquire(void*) {}
inline void release(void*) {}
inline void ignore_begin() {}
inline void ignore_end() {}
#endif

/// Runs f as another identity.
template <class F>
void as_identity(void* identity, F&& f) {
  void* self = current_identity();
  become(identity);
  f();
  become(self);
}

// --- address sanitizer
#if defined(OTTAVA_CUDA_HOST_ADDRESS)
inline void poison(const void* data, size_t bytes) { __asan_poison_memory_region(data, bytes); }
inline void unpoison(const void* data, size_t bytes) { __asan_unpoison_memory_region(data, bytes); }
inline void start_switch(void** fake_stack, const void* stack, size_t bytes) {
  __sanitizer_start_switch_fiber(fake_stack, stack, bytes);
}
inline void finish_switch(void* fake_stack) { __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr); }
#else
inline void poison(const void*, size_t) {}
inline void unpoison(const void*, size_t) {}
inline void start_switch(void**, const void*, size_t) {}
inline void finish_switch(void*) {}
#endif

}  // namespace ottava::cuda_host
