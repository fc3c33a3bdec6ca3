#pragma once

#include <string_view>
#include <vector>

#include "fp8/policy.h"

namespace ottava::fp8 {

/// A part's full name: of "layers.0.attention.wqkv" and "wq", "layers.0.attention.wq".
std::string part_name(const PolicyGemm& gemm, const PolicyGemm::Part& part);

/// Which parts of a layer an entry covers, one flag per part. A filter is looked for in the parts' names
/// first, because "wq" is also contained in "wqkv"; a glob (core/text/glob.h) is matched against the layer's
/// name first.
std::vector<bool> parts_matching_filter(const PolicyGemm& gemm, std::string_view filter);
std::vector<bool> parts_matching_glob(const PolicyGemm& gemm, const std::string& glob);

/// Throws ConfigError that names every filter and policy entry that covers nothing, and two different entries
/// for one pattern.
void check_entries(const Float8Config& config, const std::vector<PolicyGemm>& gemms);

/// The filter that is not a name but asks for torchao's size rule.
inline constexpr std::string_view kAutoFilter = "auto_filter_small_kn";

}  // namespace ottava::fp8
