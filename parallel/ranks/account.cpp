#include "parallel/ranks/account.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "core/io/descriptor.h"
#include "core/io/uninterrupted.h"

namespace ottava {

bool tell_launcher(std::string_view text, std::string_view line, Printed printed) {
  const char* file = std::getenv("OTTAVA_ACCOUNTS");
  if (!file) return false;
  const Descriptor accounts(
      uninterrupted([&] { return ::open(file, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY); }));
  struct stat status;  // in a shell that a rank started, the number may be another file's
  if (!accounts.is_open() || ::fstat(accounts, &status) != 0 || !S_ISFIFO(status.st_mode)) return false;
  std::string both;
  both.append(text).push_back('\0');
  both.push_back(static_cast<char>(printed));
  both.append(line).push_back('\0');
  for (size_t done = 0; done < both.size();) {
    const ssize_t wrote =
        uninterrupted([&] { return ::write(accounts, both.data() + done, both.size() - done); });
    if (wrote < 0) {
      pollfd room{accounts, POLLOUT, 0};  // the text is longer than the pipe: the launcher empties it
      constexpr int kMilliseconds = 1000;
      if (errno == EAGAIN && uninterrupted([&] { return ::poll(&room, 1, kMilliseconds); }) == 1) continue;
      return false;
    }
    done += static_cast<size_t>(wrote);
  }
  return true;
}

}  // namespace ottava
