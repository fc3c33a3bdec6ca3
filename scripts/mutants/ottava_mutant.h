#pragma once
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/// The mutant of this process (OTTAVA_MUTANT; 0: none), and a byte per mutant that OTTAVA_MUTANT_REACHED names a file for.
struct OttavaMutants {
  OttavaMutants() {
    if (const char* chosen = getenv("OTTAVA_MUTANT")) now = atoi(chosen);
    const char* file = getenv("OTTAVA_MUTANT_REACHED");
    const int opened = file ? open(file, O_RDWR) : -1;
    if (opened < 0) return;
    void* at = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
    if (at != MAP_FAILED) reached = static_cast<volatile char*>(at);
    close(opened);
  }
  int now = 0;
  volatile char* reached = nullptr;
};
inline const OttavaMutants ottava_mutants;

constexpr bool ottava_mutant(int k) {
  if (__builtin_is_constant_evaluated()) return false;
  if (ottava_mutants.reached) ottava_mutants.reached[k] = 1;
  return ottava_mutants.now == k;
}
