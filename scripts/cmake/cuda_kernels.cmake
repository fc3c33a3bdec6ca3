# ottava_cuda_kernels(target file...): .cu files, compiled into the target by nvcc where CUDA is on, and, whether it is or not, by
# the host compiler for tests (tests/support/cuda_host), which finds all of them in the global property OTTAVA_CUDA_KERNELS.
function(ottava_cuda_kernels target)
  foreach(_file IN LISTS ARGN)
    set_property(GLOBAL APPEND PROPERTY OTTAVA_CUDA_KERNELS ${CMAKE_CURRENT_SOURCE_DIR}/${_file})
  endforeach()
  if(NOT OTTAVA_WITH_CUDA)
    return()
  endif()
  target_sources(${target} PRIVATE ${ARGN})
  # The formulas of core/float8/formats.h and granularity.h are constexpr, and kernels call them. fmt takes nvcc for a compiler
  # without constexpr functions.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
  target_compile_definitions(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
endfunction()
