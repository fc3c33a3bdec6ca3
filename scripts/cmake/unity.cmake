# ottava_unity(target [file...]): compiles the target's C++ files but those named here eight at a time, files of one folder together:
# most of a file's time goes to headers, the same ones. Names in anonymous namespaces are therefore unique within a folder.
# -DOTTAVA_UNITY=OFF compiles each file by itself, which suits work on a few files, and shows that each includes what it
# uses (scripts/stages/aarch64.sh).
option(OTTAVA_UNITY "Compile several files of a folder together: faster as a whole, slower for one file" ON)

# Objects of their own: what tests replace by linking another definition first (tests/support/cuda_host, amx_host).
set(OTTAVA_REPLACED "(^|/)(cuda|nccl)/|_(absent|cuda)\\.cpp$|(^|/)cpu/amx\\.cpp$")

function(ottava_unity target)
  if(NOT OTTAVA_UNITY)
    return()
  endif()
  get_target_property(_files ${target} SOURCES)
  foreach(_file IN LISTS _files)
    if(_file MATCHES "^[a-z].*\\.cpp$" AND NOT _file MATCHES "${OTTAVA_REPLACED}" AND NOT _file IN_LIST ARGN)
      get_filename_component(_folder ${_file} DIRECTORY)
      string(MAKE_C_IDENTIFIER "${_folder}" _folder)
      math(EXPR _batch "0${_${_folder}_files} / 8")
      math(EXPR _${_folder}_files "0${_${_folder}_files} + 1")
      set_property(SOURCE ${_file} PROPERTY UNITY_GROUP ${_folder}_${_batch})
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
