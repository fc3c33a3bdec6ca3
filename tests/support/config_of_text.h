#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "apps/config/config.h"
#include "tests/support/temporary_folder.h"

namespace ottava::test {

/// What load_config() makes of a file `name` with this text, in a temporary folder that is the working
/// directory meanwhile.
inline Config config_of_text(const std::string& text, const std::string& name = "f.yaml",
                             const std::vector<std::string>& overrides = {}) {
  struct Place {
    TemporaryFolder folder;
    std::filesystem::path before = std::filesystem::current_path();
    Place() { std::filesystem::current_path(folder.path()); }
    ~Place() { std::filesystem::current_path(before); }
  } place;
  std::ofstream(name, std::ios::binary) << text;
  return load_config(name, overrides);
}

}  // namespace ottava::test
