#pragma once

#include <string>
#include <string_view>

#include "apps/decide/decisions.h"

namespace ottava {

/// Algorithms of matrix products that this machine's runs measured, so that the next run need not: a file for
/// each version of the library on each model of GPU, in which an entry "gemm <problem>" has the algorithm as
/// its value. `library` is the version and the GPU: "cuBLASLt 13.1.0 on NVIDIA H200". Only rank 0 reads and
/// writes it.
///
/// The file for `setting` (training.gemm_cache): in that folder; "auto": in $XDG_CACHE_HOME/ottava, else
/// ~/.cache/ottava. Empty for "off", and where there is no home.
std::string gemm_cache_file(std::string_view setting, std::string_view library);

/// What it holds. Nothing if there is none, and, said in a warning, if it cannot be read or was made for
/// another library.
Decisions read_gemm_cache(const std::string& file, const std::string& library);

/// Puts `entries` in, beside what the file has by now for other problems, in one step. A place that cannot be
/// written is said in a warning: the run goes on.
void write_gemm_cache(const std::string& file, const std::string& library,
                      const std::vector<Decisions::Entry>& entries);

}  // namespace ottava
