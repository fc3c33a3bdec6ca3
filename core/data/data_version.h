#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/data/data_file.h"

namespace ottava::data {

/// By which a run that goes on knows that files are those that it read before, sizes and samples
/// (DataFile::content) being equal. Of at most `whole_bytes` together, tables of Megatron's included, it is
/// "whole" and a hash of every byte; of more, which would keep the first step waiting, "times" and a hash of
/// their modification times: equal ones say that nothing has written to them, other ones little, as copies
/// have times of their own. Throws FileError.
std::string version_of(const std::vector<DataFile>& files, int64_t whole_bytes = int64_t{256} << 20);

}  // namespace ottava::data
