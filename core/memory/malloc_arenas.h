#pragma once

namespace ottava {

/// Where address space is limited (ulimit -v, as some batch systems set it), lets all threads share malloc's
/// one arena. Else each thread that allocates has its own, of 64 MiB of addresses however little is in it,
/// and a step that was found to fit may not find room. Not where the user has set MALLOC_ARENA_MAX. To be
/// called while there is only one thread.
void share_malloc_arena();

}  // namespace ottava
