#pragma once

#include <string>
#include <vector>

#include "parallel/ranks/launch.h"

namespace ottava {

struct RankLaunch {
  std::string program = "/proc/self/exe";
  std::vector<std::string> arguments;  ///< of every rank; the first is the program's argv[0]
  int ranks = 1;                       ///< on this machine
  int machines = 1, machine = 0;       ///< a launcher each; rank r of machine m is rank m x ranks + r of all
  /// Where rank 0 waits for the others. No address: this machine. Port 0: a free port of this machine, on
  /// which launchers of several machines could not agree.
  Master master = {.address = "", .port = 0};
  std::vector<int>
      only_ranks;  ///< whose lines are shown, and all of them (LOG_RANK); empty: the lines of all ranks
  std::string tee_folder;  ///< what rank r writes is also added to rank-r.log there; empty: nowhere
  /// After a rank has failed, how long the others have to say which rank they miss before they are killed.
  double grace_seconds = 30;
  /// Once the ranks are to end, how long the reader of their lines may read nothing before the lines are
  /// dropped.
  double reader_seconds = 5;
  /// After SIGTERM, when it is said which ranks have not ended.
  double notice_seconds = 30;
};

/// Runs the ranks of this machine, which meet over TCP, and returns when all have ended: 0, or the code of
/// the first that failed (128 + its signal, where one ended it). Every line of a rank is preceded by `[rank
/// r] `, unless only_ranks names a single one. Ranks wait for a slow reader of the lines; signals do not.
/// Time for which the caller was stopped does not count (calls/waited_time.h).
///
/// SIGTERM, SIGUSR1, SIGHUP and SIGINT are passed on, each once to each rank; then it waits for the ranks to
/// end, however long they save. A second SIGINT kills them, and 130 is returned. So does a SIGTERM (143) that
/// comes after it was said which ranks have not ended; an earlier one may be the first one's double, which
/// whole process groups get. An error that several ranks tell of alike (../ranks/account.h) is printed when
/// the first does, and kept in the files of all. If a rank failed, standard error ends with what each told.
/// No rank outlives the caller.
///
/// The stop signals must be blocked in all threads (stop_signal_set.h). Throws ConfigError for numbers that
/// do not fit, FileError for the folder, CommError if ranks that are to meet at 127.0.0.1 cannot.
int launch_ranks(const RankLaunch& launch);

}  // namespace ottava
