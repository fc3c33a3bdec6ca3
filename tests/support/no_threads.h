#pragma once

#include <pthread.h>

#include "tests/support/catch.h"

namespace ottava::test {

/// No thread can be started while it lives, as if the system allowed no more (EAGAIN): no address space holds
/// their stacks.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t attributes;
    REQUIRE(::pthread_getattr_default_np(&attributes) == 0);
    REQUIRE(::pthread_attr_getstacksize(&attributes, &before_) == 0);
    set_stack_bytes(size_t{1} << 60);
  }
  ~NoThreads() { set_stack_bytes(before_); }
  NoThreads(const NoThreads&) = delete;

 private:
  static void set_stack_bytes(size_t bytes) {
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    CHECK(::pthread_attr_setstacksize(&attributes, bytes) == 0);
    CHECK(::pthread_setattr_default_np(&attributes) == 0);
    ::pthread_attr_destroy(&attributes);
  }
  size_t before_ = 0;
};

}  // namespace ottava::test
