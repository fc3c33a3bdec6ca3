#include "core/memory/malloc_arenas.h"

#include <malloc.h>
#include <sys/resource.h>

#include <cstdlib>

namespace ottava {

void share_malloc_arena() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  if (!std::getenv("MALLOC_ARENA_MAX")) ::mallopt(M_ARENA_MAX, 1);
}

}  // namespace ottava
