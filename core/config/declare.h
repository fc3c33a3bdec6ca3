#pragma once

/// What a header needs that only declares `void declare(config::Section&, XConfig&)`.
namespace ottava::config {
class Section;
class Problems;
}  // namespace ottava::config
