# Cross-compiles for aarch64, the hosts of GH200 and GB200, with Debian's g++-aarch64-linux-gnu, against the arm64 packages that
# OTTAVA_SYSROOT holds (scripts/stages/aarch64.sh makes it). Programs run under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES OTTAVA_SYSROOT)
set(CMAKE_SYSROOT ${OTTAVA_SYSROOT})
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static;-L;${OTTAVA_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${OTTAVA_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${OTTAVA_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${OTTAVA_SYSROOT}/usr/share/pkgconfig)
# This machine's mpicc would answer for its own MPI; bundles have build_mpi.sh.
set(CMAKE_DISABLE_FIND_PACKAGE_MPI ON)
set(OTTAVA_LIBRARY_FOLDERS ${OTTAVA_SYSROOT}/usr/lib/aarch64-linux-gnu)
