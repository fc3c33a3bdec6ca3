#include "core/io/terminal.h"

#include <sys/ioctl.h>

#include <string>

namespace ottava {

size_t terminal_columns(int descriptor) {
  winsize size{};
  const bool is_known = ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : std::string::npos;
}

}  // namespace ottava
