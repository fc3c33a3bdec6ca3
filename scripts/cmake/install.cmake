# What `cmake --install` puts where, and the packages that cpack makes of it: one list of files for all.
#   runtime   the program and what it reads; every installation
#   mpi       the module for the MPI that was found here; not in a TGZ, whose machine has an MPI of its own
#   debian    where Debian's zsh looks; in a DEB only
#   bundle    shared libraries and, of a build for scripts/bundle.sh, the tests for a GPU; in a TGZ only
set(_texts ${CMAKE_BINARY_DIR}/installed_texts)
find_package(Python3 REQUIRED COMPONENTS Interpreter)
get_target_property(_emulator ottava CROSSCOMPILING_EMULATOR)
if(NOT _emulator)
  set(_emulator)
endif()
# Made when it is installed, from the command line and the keys that the program has by then.
install(CODE "execute_process(COMMAND \"${Python3_EXECUTABLE}\" \"${CMAKE_SOURCE_DIR}/scripts/install/make_texts.py\"
  \"${_texts}\" ${_emulator} \"$<TARGET_FILE:ottava>\" COMMAND_ERROR_IS_FATAL ANY)" COMPONENT runtime)
set(_programs ottava)
if(OTTAVA_BUNDLE)
  list(APPEND _programs ottava_device_tests)
endif()
foreach(_program IN LISTS _programs)
  set_target_properties(${_program} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/ottava")
  target_link_options(${_program} PRIVATE -Wl,--disable-new-dtags)  # DT_RPATH, which counts for what libraries need too
endforeach()
install(TARGETS ottava RUNTIME_DEPENDENCY_SET ottava_libraries RUNTIME COMPONENT runtime)
install(FILES ${_texts}/ottava.1.gz DESTINATION share/man/man1 COMPONENT runtime)
install(FILES ${_texts}/ottava.bash RENAME ottava DESTINATION share/bash-completion/completions COMPONENT runtime)
install(FILES ${_texts}/_ottava DESTINATION share/zsh/site-functions COMPONENT runtime)
install(FILES ${_texts}/_ottava DESTINATION share/zsh/vendor-completions COMPONENT debian EXCLUDE_FROM_ALL)
install(DIRECTORY ${_texts}/configs ${_texts}/scripts DESTINATION share/ottava COMPONENT runtime USE_SOURCE_PERMISSIONS)
install(FILES LICENSE RENAME copyright DESTINATION share/doc/ottava COMPONENT runtime)
install(FILES scripts/install/README.md DESTINATION share/doc/ottava COMPONENT runtime)
install(FILES scripts/install/README.md DESTINATION . COMPONENT bundle EXCLUDE_FROM_ALL)
if(OTTAVA_WITH_MPI)
  install(TARGETS ottava_mpi LIBRARY DESTINATION lib/ottava COMPONENT mpi)
endif()

# The C library belongs to the machine; CUDA's and MPI's libraries are opened at run time and never linked.
install(RUNTIME_DEPENDENCY_SET ottava_libraries DESTINATION lib/ottava COMPONENT bundle EXCLUDE_FROM_ALL
  PRE_EXCLUDE_REGEXES "^(linux-vdso|ld-linux|libc|libm|libdl|librt|libpthread|libcuda|libcudart|libnccl|libcublas|libmpi)[.-]"
  DIRECTORIES ${OTTAVA_LIBRARY_FOLDERS})
install(PROGRAMS scripts/install/build_mpi.sh DESTINATION share/ottava/mpi COMPONENT bundle EXCLUDE_FROM_ALL)
install(FILES parallel/comm/mpi/mpi_module.h parallel/comm/mpi/mpi_module.cpp
  DESTINATION share/ottava/mpi/parallel/comm/mpi COMPONENT bundle EXCLUDE_FROM_ALL)
if(OTTAVA_BUNDLE)
  install(TARGETS ottava_device_tests RUNTIME_DEPENDENCY_SET ottava_libraries RUNTIME COMPONENT bundle EXCLUDE_FROM_ALL)
  if(TARGET ottava_cublaslt_probe)
    install(TARGETS ottava_cublaslt_probe RUNTIME COMPONENT bundle EXCLUDE_FROM_ALL)
  endif()
  install(PROGRAMS scripts/gpu_check.sh DESTINATION share/ottava/scripts COMPONENT bundle EXCLUDE_FROM_ALL)
  install(DIRECTORY scripts/gpu_check DESTINATION share/ottava/scripts COMPONENT bundle EXCLUDE_FROM_ALL FILES_MATCHING PATTERN "*.py")
  install(FILES scripts/reference/bench_pytorch.py DESTINATION share/ottava/scripts/reference COMPONENT bundle EXCLUDE_FROM_ALL)
  install(FILES tests/golden/fp8/policy_tables.txt DESTINATION share/ottava/tests/golden/fp8 COMPONENT bundle EXCLUDE_FROM_ALL)
  install(FILES tests/golden/muon.json DESTINATION share/ottava/tests/golden COMPONENT bundle EXCLUDE_FROM_ALL)
endif()
# BUILD: what was built, and the oldest C library it runs on: the newest symbol version that anything here asks for.
install(CODE "set(_features \"version ${PROJECT_VERSION}\\ngpu ${OTTAVA_CUDA_STATE}\\ncudnn attention ${OTTAVA_CUDNN_STATE}\\n\")
  set(_prefix \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
  execute_process(COMMAND git -C \"${CMAKE_SOURCE_DIR}\" rev-parse --short HEAD OUTPUT_VARIABLE _commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  execute_process(COMMAND \"${CMAKE_SOURCE_DIR}/scripts/install/needed_glibc.sh\" \"\${_prefix}\" OUTPUT_VARIABLE _glibc
    COMMAND_ERROR_IS_FATAL ANY)
  file(WRITE \"\${_prefix}/share/ottava/BUILD\" \"\${_features}commit \${_commit}\\nglibc \${_glibc}\")"
  COMPONENT bundle EXCLUDE_FROM_ALL)

# Packages are made of what is built: `cpack` compiles nothing.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PACKAGE_NAME ottava)
set(CPACK_PACKAGE_VENDOR ottava)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains Llama-family language models in FP8, BF16 and FP32")
set(CPACK_PACKAGE_DESCRIPTION "One executable and one YAML or TOML file per experiment, from a laptop's CPU to a GPU cluster.")
set(CPACK_PACKAGE_FILE_NAME ottava-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)  # ottava_VERSION_ARCHITECTURE.deb
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "ottava <ottava@localhost>")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "openmpi-bin, procps")
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/scripts/cmake/package_components.cmake)
include(CPack)
