#include "apps/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

namespace ottava {

void open_standard_streams() {
  int number = 0;
  do {
    number = ::open("/dev/null", O_RDWR);
  } while (number >= 0 && number <= STDERR_FILENO);
  if (number > STDERR_FILENO) ::close(number);
}

}  // namespace ottava
