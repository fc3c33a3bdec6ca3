#include "core/threads/control_groups.h"

#include <fstream>
#include <sstream>

#include "core/contains.h"

namespace ottava {

namespace fs = std::filesystem;

std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& root) {
  std::vector<ControlGroup> all;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/job/step", "0::/user.slice"
    std::istringstream fields(line);
    std::string number, controllers, path;
    std::getline(fields, number, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, path);
    const bool is_version_2 = number == "0" && controllers.empty();
    const std::string wanted = "," + std::string(controller) + ",";
    if (!is_version_2 && !contains_text("," + controllers + ",", wanted)) continue;
    const fs::path mount = root + "/sys/fs/cgroup" + (is_version_2 ? "" : "/" + std::string(controller));
    for (fs::path group = fs::path(path).relative_path();; group = group.parent_path()) {
      all.push_back({mount / group, is_version_2});
      if (group.empty()) break;
    }
  }
  return all;
}

}  // namespace ottava
