# ottava_cpu_kernels(target file...): compile each file once per instruction set.
#
# A kernel file puts its functions into namespace OTTAVA_ISA (core/cpu/isa.h says how they are chosen at run time), so
# release binaries need no -march=native and still use AVX-512 where it exists. Objects of kernel files hold no inline
# function or template from elsewhere: the linker would keep one copy, perhaps the one a small machine cannot run.
set(OTTAVA_ISA_LIST baseline)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  set(OTTAVA_ISA_LIST baseline avx2 avx512)
  set(OTTAVA_ISA_FLAGS_baseline "")
else()
  set(OTTAVA_ISA_FLAGS_baseline -ffp-contract=fast)
endif()
set(OTTAVA_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c -mbmi -mbmi2)
set(OTTAVA_ISA_FLAGS_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd -mavx2 -mfma -mf16c -mbmi -mbmi2
    -mprefer-vector-width=512)

set(OTTAVA_ISA_FLAGS_avx512_fp16 ${OTTAVA_ISA_FLAGS_avx512} -mavx512fp16)
if(avx512 IN_LIST OTTAVA_ISA_LIST)
  include(CheckCXXSourceCompiles)  # clang compiles for it since 14, and can ask for it since 17
  set(CMAKE_REQUIRED_FLAGS -mavx512fp16)
  check_cxx_source_compiles("int main() { return __builtin_cpu_supports(\"avx512fp16\"); }" OTTAVA_HAS_AVX512_FP16)
  set(CMAKE_REQUIRED_FLAGS "-mavx512f -mavx512bf16 -mamx-tile -mamx-bf16")
  check_cxx_source_compiles("#include <immintrin.h>
    int main() { _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_dpbf16ps(0, 1, 2); __m512bh a{}; _mm512_dpbf16_ps(__m512{}, a, a); }"
    OTTAVA_HAS_PAIRS)
  unset(CMAKE_REQUIRED_FLAGS)
endif()
set(OTTAVA_ISA_FLAGS_avx512_bf16 ${OTTAVA_ISA_FLAGS_avx512} -mavx512bf16)
set(OTTAVA_ISA_FLAGS_avx512_amx ${OTTAVA_ISA_FLAGS_avx512} -mamx-tile -mamx-bf16)

# The same for files that have a use for arithmetic of 16 bits: once more, where the compiler knows it.
function(ottava_cpu_kernels_and_fp16 target)
  ottava_cpu_kernels(${target} ${ARGN})
  if(OTTAVA_HAS_AVX512_FP16)
    ottava_cpu_kernels_of(avx512_fp16 ${target} ${ARGN})
    target_compile_definitions(${target} PUBLIC OTTAVA_HAS_AVX512_FP16=1)
  endif()
endfunction()

# For AVX512-BF16 and for AMX alone, where the compiler knows them: the caller has another way elsewhere.
function(ottava_cpu_kernels_of_pairs target)
  if(OTTAVA_HAS_PAIRS)
    ottava_cpu_kernels_of(avx512_bf16 ${target} ${ARGN})
    ottava_cpu_kernels_of(avx512_amx ${target} ${ARGN})
    target_compile_definitions(${target} PRIVATE OTTAVA_HAS_PAIRS=1)
    list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
    set_property(GLOBAL APPEND PROPERTY OTTAVA_PAIR_KERNELS ${ARGN})  # for tests/support/amx_host
  endif()
endfunction()

function(ottava_cpu_kernels target)
  foreach(isa IN LISTS OTTAVA_ISA_LIST)
    ottava_cpu_kernels_of(${isa} ${target} ${ARGN})
  endforeach()
endfunction()

function(ottava_cpu_kernels_of isa target)
  set(object ${target}_${isa})
  if(NOT TARGET ${object})
    add_library(${object} OBJECT)
    target_link_libraries(${object} PRIVATE ottava_flags ottava::openmp)
    target_compile_definitions(${object} PRIVATE OTTAVA_ISA=${isa})
    # -O3 also in debug builds: a kernel at -O0 is 50 times slower and no easier to read.
    target_compile_options(${object} PRIVATE ${OTTAVA_ISA_FLAGS_${isa}} -Wno-psabi
      -Wno-uninitialized -Wno-maybe-uninitialized  # GCC 12 takes the undefined operands of its own AVX-512 intrinsics for ours
      $<$<NOT:$<OR:$<BOOL:${OTTAVA_SANITIZE}>,$<BOOL:${OTTAVA_FUZZ}>>>:-O3>)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${object}>)
  endif()
  foreach(file IN LISTS ARGN)
    target_sources(${object} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  endforeach()
endfunction()
