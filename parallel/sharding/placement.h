#pragma once

#include <string>
#include <vector>

#include "parallel/sharding/mesh.h"

namespace ottava {

/// A sentence if ranks that exchange much (tensor parallel, context parallel, the shards of one replica) lie
/// on more machines than they need, so that all of it crosses the network; empty if none do. `hosts`: each
/// rank's machine.
std::string scattered_groups(const Mesh& mesh, const std::vector<std::string>& hosts);

}  // namespace ottava
