#include "core/cuda/shared_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace ottava;

TEST_CASE("a library is opened and its functions found") {
  const cuda::SharedLibrary library("libm.so.6", "the mathematics library");
  double (*cosine)(double) = nullptr;
  library.find("cos", cosine);
  CHECK(cosine(0.0) == 1.0);
  CHECK_THROWS_WITH(library.find("no_such_function", cosine),
                    "[cuda] the mathematics library (libm.so.6) has no function no_such_function, so it is "
                    "too old: install a newer version");
}

TEST_CASE("functions of a library are its own, or global where a later library looks for them") {
  if (void* there = dlopen("libcrypt.so.1", RTLD_LAZY | RTLD_LOCAL); !there)
    return test::skip("no libcrypt.so.1");
  const cuda::SharedLibrary own("libcrypt.so.1", "a library that nothing here links");
  CHECK(dlsym(RTLD_DEFAULT, "crypt_gensalt") == nullptr);
  const cuda::SharedLibrary shared("libcrypt.so.1", "the same", cuda::SharedLibrary::Symbols::global);
  CHECK(dlsym(RTLD_DEFAULT, "crypt_gensalt") != nullptr);
}

TEST_CASE("a missing library is named with the places that were searched") {
  setenv("OTTAVA_CUDA_LIBRARIES", "/first/place:/second", 1);
  std::string message;
  try {
    cuda::SharedLibrary("libottava_absent.so.1", "an absent library");
  } catch (const DeviceError& e) {
    message = e.what();
  }
  unsetenv("OTTAVA_CUDA_LIBRARIES");
  INFO(message);
  CHECK(message.find(
            "[cuda] an absent library (libottava_absent.so.1) was not found: install it, or set "
            "OTTAVA_CUDA_LIBRARIES to its folder; searched the loader's path, /first/place, /second, ") == 0);
  CHECK(message.find("/usr/local/cuda/lib64") != std::string::npos);
  CHECK(message.find("nvidia/*/lib") != std::string::npos);
}
