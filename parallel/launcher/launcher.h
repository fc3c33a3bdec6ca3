#pragma once

#include <string>
#include <vector>

#include "parallel/ranks/launch.h"

namespace ottava {

struct RankLaunch {
  std::string program = "/proc/self/exe";
  std::vector<std::string> arguments;  ///< of every rank; the name that the program is told comes first
  int ranks = 1;                       ///< on this machine
  int machines = 1, machine = 0;       ///< a launcher each; rank r of machine m is rank m x ranks + r of all
  /// Where rank 0 waits for the others. Without an address: this machine. Port 0: a free one of this machine,
  /// which launchers of several would not agree on.
  Master master = {.address = "", .port = 0};
  std::vector<int> only_ranks;  ///< whose lines are shown (all of them, LOG_RANK); empty: those of all ranks
  std::string tee_folder;       ///< what rank r writes goes into rank-r.log there too; empty: nowhere
  /// After a rank has failed, how long the others have to say which rank they miss; then they are killed.
  double grace_seconds = 30;
  /// Once the ranks are to end, how long whoever reads their lines may take none; then those are dropped.
  double reader_seconds = 5;
};

/// Runs the ranks of this machine, which meet over TCP, and returns when all have ended: 0, or the code of
/// the first that failed (128 + its signal, where one ended it). Every line of a rank comes behind `[rank r]
/// `, unless only_ranks names a single one. Ranks wait for who reads the lines, signals do not.
///
/// SIGTERM, SIGUSR1, SIGHUP and SIGINT are passed on, each once to each rank, and the ranks' end is awaited,
/// however long they save. A second SIGINT kills them: 130. When one failed, the accounts of all are printed
/// to standard error, by rank. No rank outlives the caller.
///
/// The stop signals must be blocked in all threads (stop_signal_set.h). Throws ConfigError for numbers that
/// do not fit, FileError for the folder.
int launch_ranks(const RankLaunch& launch);

}  // namespace ottava
