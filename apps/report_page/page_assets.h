#pragma once

#include <string_view>

/// The parts of a report besides its numbers, embedded when the program is built (scripts/cmake/embed.cmake).
namespace ottava {

extern const std::string_view kDygraphsScript, kDygraphsStyle;  ///< of the distribution; MIT license
extern const std::string_view kDygraphsLicense;                 ///< its text
extern const std::string_view kReportScript, kReportStyle;      ///< page/

}  // namespace ottava
