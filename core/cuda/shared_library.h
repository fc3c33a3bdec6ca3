#pragma once

#include <string>

namespace ottava::cuda {

/// A CUDA library opened at run time: from the loader's own path, OTTAVA_CUDA_LIBRARIES (directories,
/// separated by colons), $CUDA_HOME, /usr/local/cuda, and where pip puts NVIDIA's packages. Stays open for
/// the life of the process.
class SharedLibrary {
 public:
  enum class Symbols { own, global };  ///< global: libraries opened later find its functions and its name
  /// `meaning` is for the message: "the NVIDIA cuBLAS library". Throws DeviceError naming the places
  /// searched.
  SharedLibrary(const std::string& file, std::string meaning, Symbols symbols = Symbols::own);

  /// The handle, for code that calls dlsym itself.
  void* handle() const { return handle_; }

  /// Sets `function` to the library's function of this name. Throws DeviceError if there is none.
  template <class F>
  void find(const char* name, F& function) const {
    function = reinterpret_cast<F>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;
  std::string file_, meaning_;
  void* handle_ = nullptr;
};

}  // namespace ottava::cuda
