#pragma once

namespace ottava {

/// Opens /dev/null in the place of standard input, output and error that are closed: files that are opened
/// later would take their numbers, and what is printed would go into those. Call it first of all.
void open_standard_streams();

}  // namespace ottava
