# Read by cpack for each kind of package: which components of scripts/cmake/install.cmake it has.
set(_components_TGZ runtime bundle)
set(_components_DEB runtime mpi debian)
list(GET CPACK_INSTALL_CMAKE_PROJECTS 0 _build)
set(CPACK_INSTALL_CMAKE_PROJECTS)
foreach(_component IN LISTS _components_${CPACK_GENERATOR})
  list(APPEND CPACK_INSTALL_CMAKE_PROJECTS ${_build} ottava ${_component} /)
endforeach()
