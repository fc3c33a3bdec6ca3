#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/data/data_file.h"

namespace ottava::data {

/// A text by which a run that continues finds out whether files whose sizes and samples (DataFile::content)
/// are equal are the files that it read before. If they have at most `whole_bytes` together, including the
/// tables of Megatron's, it is "whole" and a hash of every byte. Reading more would keep the first step
/// waiting: then it is "times" and a hash of the modification times. Equal times mean that nothing has
/// written to the files; different times mean little, since copies have times of their own. Throws FileError.
std::string version_of(const std::vector<DataFile>& files, int64_t whole_bytes = int64_t{256} << 20);

}  // namespace ottava::data
