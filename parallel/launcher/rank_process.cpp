#include "parallel/launcher/rank_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "core/error.h"
#include "core/io/system_failure.h"
#include "core/io/uninterrupted.h"
#include "parallel/launcher/stop_signal_set.h"

namespace ottava {
namespace {

struct Pipe {
  Descriptor read, write;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) fail<Error>("launch", "no pipe for a rank: {}", system_reason(errno));
    read = Descriptor(ends[0]), write = Descriptor(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (const std::string& text : texts) list.push_back(const_cast<char*>(text.c_str()));
  list.push_back(nullptr);
  return list;
}

}  // namespace

RankProcess start_rank(const std::string& program, const std::vector<std::string>& arguments,
                       std::vector<std::string> environment) {
  Pipe output, errors, account, failure;
  ::fcntl(failure.read, F_SETFL, 0);  // it is waited for
  const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  environment.push_back(fmt::format("OTTAVA_ACCOUNTS=/proc/self/fd/{}", static_cast<int>(account.write)));
  const std::vector<char*> words = pointers(arguments), variables = pointers(environment);
  const sigset_t blocked = stop_signal_set();
  const pid_t launcher = ::getpid(), id = ::fork();
  if (id < 0) {
    fail<Error>("launch", "a rank cannot be started: {}{}", std::strerror(errno),
                errno == EAGAIN
                    ? "; end other processes, or raise the limit of processes (ulimit -u, or pids.max "
                      "of the container), if there is one"
                    : "");
  }
  if (id == 0) {  // of a program that may have threads: nothing but system calls from here on
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != launcher) ::_exit(1);  // it ended before the kernel was asked
    ::dup2(nothing, 0);
    ::dup2(output.write, 1);
    ::dup2(errors.write, 2);
    ::fcntl(account.write, F_SETFD, 0);
    ::sigprocmask(SIG_SETMASK, &blocked, nullptr);
    ::execve(program.c_str(), words.data(), variables.data());
    const int error = errno;
    ::_exit(::write(failure.write, &error, sizeof error) < 0 ? 126 : 127);
  }
  failure.write.close();
  int error = 0;  // closed by the program that is started
  if (uninterrupted([&] { return ::read(failure.read, &error, sizeof error); }) > 0) {
    ::waitpid(id, nullptr, 0);
    fail<Error>("launch", "cannot start {} as a rank: {}{}", program, std::strerror(error),
                program.starts_with("/proc/") ? "; mount /proc, from which ranks are started" : "");
  }
  return {id, std::move(output.read), std::move(errors.read), std::move(account.read)};
}

}  // namespace ottava
