#pragma once

#include <string>
#include <vector>

namespace ottava {

/// For a file that a command is to write, before the work: require_writable(), and throws FileError too where
/// it is one of the files that the command reads, or one that a run keeps (is_file_of_run()). An empty `file`
/// is none.
void require_named_output(const std::string& file, const std::vector<std::string>& read);

}  // namespace ottava
