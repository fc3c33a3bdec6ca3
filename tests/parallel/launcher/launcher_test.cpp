#include "parallel/launcher/launcher.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/io/file.h"
#include "tests/support/catch.h"
#include "tests/support/launched.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;
using Catch::EndsWith;

namespace {

Outcome launch(const std::string& options, const std::string& script) {
  return run_command(std::string("exec " LAUNCH_PROGRAM " ") + options + " -- /bin/sh -c '" + script + "'");
}

int64_t count(const std::string& text, const std::string& what) {
  int64_t found = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++found;
  return found;
}

/// Ranks that listen until SIGTERM; body(launcher, said) runs when all do. What they said so far is in a
/// file, because the launcher is still running.
class Listening {
 public:
  explicit Listening(const std::function<void(int launcher, const Listening&)>& body) {
    outcome_ = run_command("exec " + command(), [&](int launcher) {
      if (!wait_until(200, [&] { return said("its own group") == 3; })) ::kill(launcher, SIGKILL);
      body(launcher, *this);
    });
    gone_ = wait_until(60, [&] { return processes_with(tee_).empty(); });
  }
  int64_t said(const std::string& text) const {
    int64_t all = 0;
    for (int r = 0; r < 3; ++r) {
      const std::string file = tee_ + "/rank-" + std::to_string(r) + ".log";
      if (::access(file.c_str(), R_OK) == 0) all += count(read_file(file), text);
    }
    return all;
  }
  bool comes(const std::string& text) const {
    return wait_until(200, [&] { return said(text) == 3; });
  }
  const Outcome& outcome() const { return outcome_; }
  /// Whether no process of it is left.
  bool gone() const { return gone_; }

 private:
  std::string command() const {
    return LAUNCH_PROGRAM " 3 --tee " + tee_ + " -- listen " + tee_;  // the ranks carry the folder's name too
  }
  TemporaryFolder folder_;
  std::string tee_ = folder_ / "said";
  Outcome outcome_;
  bool gone_ = false;
};

// Ranks of which the first ends at once and the others, which ignore SIGTERM, do not; body(launcher)
// runs when the first has ended and only the launcher's command line names the folder.
Outcome launch_deaf(const std::string& folder, double notice_seconds,
                    const std::function<void(int launcher)>& body) {
  const std::string script =
      "trap \"\" TERM INT; touch " + folder + "/$RANK; [ $RANK = 0 ] && exit 0; exec sleep 1000";
  return run_command("exec " LAUNCH_PROGRAM " 3 --notice " + std::to_string(notice_seconds) +
                         " -- /bin/sh -c '" + script + "' 2> " + folder + "/said",
                     [&](int launcher) {
                       const auto begun = [&](const char* rank) {
                         return std::filesystem::exists(folder + "/" + rank);
                       };
                       CHECK(wait_until(200, [&] {
                         return begun("0") && begun("1") && begun("2") && processes_with(folder).size() == 1;
                       }));
                       body(launcher);
                     });
}

}  // namespace

TEST_CASE("ranks know each other, and their lines come whole and labelled") {
  const Outcome o =
      launch("3",
             "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE at $MASTER_ADDR; printf "
             "two; printf \" words\" >&2; sleep 0.1; printf .");
  INFO(o.output);
  CHECK(o.exit_code == 0);
  for (const std::string r : {"0", "1", "2"}) {
    const std::string label = "[rank " + r + "] ";
    CHECK_THAT(o.output, Contains(label + r + " of 3, " + r + " of 3 at 127.0.0.1\n") &&
                             Contains(label + "two.\n") && Contains(label + " words\n"));
  }
  CHECK(count(o.output, "\n") == 9);
}

TEST_CASE("ranks that do not end after SIGTERM are named, and then a second SIGTERM kills them") {
  TemporaryFolder folder;
  const std::string notice =
      "0.5 s after SIGTERM these ranks have not ended, and may be saving: 1, 2; another SIGTERM kills them\n";
  const Outcome o = launch_deaf(folder.path(), 0.5, [&](int launcher) {
    ::kill(launcher, SIGTERM);
    CHECK(wait_until(200, [&] { return count(read_file(folder / "said"), notice) == 1; }));
    ::kill(launcher, SIGTERM);
  });
  CHECK(o.exit_code == 128 + SIGTERM);
  CHECK(count(read_file(folder / "said"), notice) == 1);
}

TEST_CASE("a second SIGTERM that comes before ranks are named kills none") {
  TemporaryFolder folder;
  const Outcome o = launch_deaf(folder.path(), 1000, [&](int launcher) {
    for (int signal : {SIGTERM, SIGTERM, SIGINT, SIGINT}) {
      ::kill(launcher, signal);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  });
  CHECK(o.exit_code == 128 + SIGINT);
}

TEST_CASE("a program that cannot be started is named, with the reason") {
  for (const auto& [program, reason] :
       {std::pair("/nowhere/program", "No such file or directory"),
        std::pair("/proc/self/nothing",
                  "No such file or directory; mount /proc, from which ranks are "
                  "started"),
        std::pair("/", "Permission denied")}) {
    const Outcome o = run_command(std::string("exec " LAUNCH_PROGRAM " 2 -- ") + program);
    INFO(o.output);
    CHECK(o.exit_code == 1);
    CHECK(o.output == fmt::format("[launch] cannot start {} as a rank: {}\n", program, reason));
  }
}

TEST_CASE("rank 0 waits where it was told, and at a free port where that was not said") {
  const auto master = [](const std::string& options) {
    const Outcome o = launch("1 --only 0 " + options, "echo $MASTER_ADDR:$MASTER_PORT");
    CHECK(o.exit_code == 0);
    return o.output;
  };
  CHECK(master("--address 127.0.0.2 --port 29511") == "127.0.0.2:29511\n");
  CHECK(master("--port 29511") == "127.0.0.1:29511\n");
  for (const std::string options : {"", "--address 127.0.0.1", "--address 127.0.0.1 --port 0"}) {
    const std::string text = master(options);
    CHECK(text.starts_with("127.0.0.1:"));
    CHECK(std::atoi(text.c_str() + text.find(':') + 1) > 0);
  }
}

TEST_CASE("without a loopback interface ranks of one machine are not started") {
  const std::string apart = "unshare --map-root-user --net -- ";
  if (run_command(apart + "true").exit_code != 0) return skip("no network of its own can be made here");
  const Outcome o = run_command(apart + LAUNCH_PROGRAM " 2 -- /bin/sh -c 'echo started'");
  INFO(o.output);
  CHECK(o.exit_code == 1);
  CHECK(o.output ==
        "[launch] ranks cannot meet at 127.0.0.1: Network is unreachable; bring this machine's loopback "
        "interface up (as root: ip link set lo up)\n");
  CHECK(run_command(apart + LAUNCH_PROGRAM " 1 -- /bin/sh -c true").exit_code == 0);
}

TEST_CASE("of one rank alone lines come as they are, and files have those of all") {
  TemporaryFolder folder;
  const Outcome o =
      launch("3 --only 1 --tee " + folder / "logs", "echo \"I am $RANK, log of $LOG_RANK\"; printf more >&2");
  INFO(o.output);
  CHECK(o.exit_code == 0);
  CHECK((o.output == "I am 1, log of 1\nmore\n" || o.output == "more\nI am 1, log of 1\n"));
  for (const std::string r : {"0", "1", "2"}) {
    CHECK_THAT(read_file(folder / "logs/rank-" + r + ".log"),
               Contains("I am " + r + ", log of 1\n") && Contains("more"));
  }
  // The same command again goes on in them.
  CHECK(launch("3 --only 1 --tee " + folder / "logs", "echo again").exit_code == 0);
  for (const std::string r : {"0", "1", "2"})
    CHECK_THAT(read_file(folder / "logs/rank-" + r + ".log"), Contains("I am " + r) && EndsWith("again\n"));
}

TEST_CASE("files that cannot take all lines are named once") {
  TemporaryFolder folder;
  for (const char* name : {"rank-0.log", "rank-1.log"})
    std::filesystem::create_symlink("/dev/full", folder / name);
  const Outcome o = launch("2 --tee " + folder.path(), "echo one; echo two >&2; sleep 0.1; echo three");
  INFO(o.output);
  CHECK(o.exit_code == 0);
  CHECK(count(o.output, "three") == 2);
  CHECK(count(o.output, "ottava launch: WARNING: ") == 1);
  CHECK_THAT(o.output, Contains(".log cannot be written (No space left on device)"));
}

TEST_CASE("where standard output takes no lines, the launcher says so once") {
  const Outcome o = launch("2", "echo one; sleep 0.1; echo two' > /dev/full #");
  CHECK(o.exit_code == 0);
  CHECK(
      o.output ==
      "ottava launch: WARNING: lines of ranks cannot be written (No space left on device): what does not fit "
      "is missing\n");
}

TEST_CASE("where there are too few descriptors for pipes, the launcher says what to raise") {
  const Outcome o = run_command("ulimit -n 12; exec " LAUNCH_PROGRAM " 8 -- /bin/sh -c 'exec sleep 100'");
  INFO(o.output);
  CHECK(o.exit_code == 1);
  CHECK_THAT(o.output, EndsWith("[launch] no pipe for a rank: Too many open files: raise ulimit -n\n"));
}

TEST_CASE("the first code that is not 0 is returned, and the others do not stay") {
  const Outcome o =
      launch("3 --grace 0.3",
             "if [ $RANK = 1 ]; then printf \"no more text\\0NO MORE TEXT\\n\\0\" >> $OTTAVA_ACCOUNTS; "
             "exit 7; fi; exec sleep 1000");
  INFO(o.output);
  CHECK(o.exit_code == 7);
  CHECK_THAT(o.output,
             Contains("[rank 1] NO MORE TEXT\n") &&
                 Contains("the ranks ended with an error; their accounts:\nranks 0, 2: ended by signal 9 "
                          "(Killed)\nrank 1: no more text\n"));
  CHECK_FALSE(o.timed_out);
  const Outcome killed = launch("2", "[ $RANK = 0 ] || kill -SEGV $$; exec sleep 0.5");
  INFO(killed.output);
  CHECK(killed.exit_code == 128 + SIGSEGV);
  CHECK_THAT(killed.output, Contains("rank 1: ended by signal 11") && !Contains("rank 0:"));
}

TEST_CASE("what several ranks tell alike is shown once, as soon as one does, and is in the files of all") {
  const TemporaryFolder folder;
  // Rank 3 lives, in order that nothing but its file ends it, until the others' words are out.
  const std::string tell = "tell() { printf \"$1\\0line of $RANK: $1\\n\\0\" >> $OTTAVA_ACCOUNTS; }; ",
                    begin = "4 --tee " + folder / "logs";
  const Outcome o =
      run_command("exec " LAUNCH_PROGRAM " " + begin + " -- /bin/sh -c '" + tell +
                      "printf half; case $RANK in 1) tell other;; 3) until [ -e " + folder / "end" +
                      " ]; do sleep 0.05; done;; *) tell same;; esac; exit 1' > " + folder / "out",
                  [&](int) {
                    CHECK(wait_until(200, [&] {
                      if (!std::filesystem::exists(folder / "out")) return false;
                      const std::string out = read_file(folder / "out");
                      return count(out, ": same") == 1 && count(out, "line of 1: other\n") == 1;
                    }));
                    std::ofstream(folder / "end");
                  });
  INFO(o.output);
  CHECK(o.exit_code == 1);
  CHECK(
      o.output ==
      "ottava launch: the ranks ended with an error; their accounts:\nranks 0, 2: same\nrank 1: other\nrank "
      "3: ended with code 1\n");
  const std::string out = read_file(folder / "out");
  CHECK(count(out, "same") == 1);
  CHECK(count(out, "] half\n") == 4);
  for (const std::string r : {"0", "2"})
    CHECK(read_file(folder / "logs/rank-" + r + ".log") == "half\nline of " + r + ": same\n");
  const Outcome all = launch("3", tell + "tell same; exit 1");
  INFO(all.output);
  CHECK(count(all.output, "same") == 1);
  CHECK_THAT(all.output, EndsWith(": same\nottava launch: all 3 ranks ended with the error above\n"));
  const Outcome apart = launch("3", tell + "tell same; exit 1' 2>&1 >/dev/null #");
  CHECK(apart.output == "ottava launch: the ranks ended with an error; their accounts:\nall 3 ranks: same\n");
  const Outcome hidden = launch("3 --only 1", tell + "[ $RANK = 1 ] || { tell same; exit 1; }");
  CHECK(hidden.output == "ottava launch: the ranks ended with an error; their accounts:\nranks 0, 2: same\n");
}

TEST_CASE("ranks end for a launcher whose parent ignored SIGCHLD, too") {
  for (const std::string code : {"0", "3"}) {
    const Outcome o =
        run_command("trap '' CHLD; exec " LAUNCH_PROGRAM " 2 -- /bin/sh -c 'exit " + code + "'");
    INFO(o.output);
    CHECK_FALSE(o.timed_out);
    CHECK(std::to_string(o.exit_code) == code);
  }
}

TEST_CASE("time for which the launcher is stopped is none that the others have to end") {
  const TemporaryFolder folder;
  const std::string at = folder.path();
  const Outcome o = run_command(
      "exec " LAUNCH_PROGRAM " 2 --grace 3 -- /bin/sh -c 'touch " + at +
          "/$RANK; [ $RANK = 0 ] && exit 7; until [ -e " + at + "/end ]; do sleep 0.05; done; echo saved'",
      [&](int launcher) {
        const auto begun = [&](const char* rank) { return std::filesystem::exists(folder / rank); };
        CHECK(wait_until(200, [&] { return begun("0") && begun("1") && processes_with(at).size() == 2; }));
        ::kill(launcher, SIGSTOP);
        std::this_thread::sleep_for(std::chrono::milliseconds(3200));
        ::kill(launcher, SIGCONT);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        std::ofstream(folder / "end");
      });
  INFO(o.output);
  CHECK(o.exit_code == 7);
  CHECK_THAT(o.output, Contains("[rank 1] saved") && !Contains("rank 1: was ended"));
}

TEST_CASE("variables of other launchers are not those of the ranks") {
  const Outcome o = run_command(
      "SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 "
      "PMI_SIZE=1 "
      "TORCHELASTIC_USE_AGENT_STORE=True RANK=5 " LAUNCH_PROGRAM
      " 2 -- /bin/sh -c 'env | grep -cE \"^(SLURM_|OMPI_|PMI_|TORCHELASTIC_)\"; env | grep -c ^RANK='");
  INFO(o.output);
  CHECK(count(o.output, "] 0\n") == 2);
  CHECK(count(o.output, "] 1\n") == 2);
  // Of two with one name a program takes the first.
  const Outcome nested = run_command("OTTAVA_ACCOUNTS=/nowhere " LAUNCH_PROGRAM " 2 -- /usr/bin/env");
  INFO(nested.output);
  CHECK(count(nested.output, "OTTAVA_ACCOUNTS=") == 2);
  CHECK(count(nested.output, "/nowhere") == 0);
}

TEST_CASE("a signal comes to each rank once, and the launcher waits for what they do") {
  const Listening run([](int launcher, const Listening& run) {
    for (const auto& [signal, text] :
         {std::pair{SIGUSR1, "got SIGUSR1"}, {SIGINT, "got SIGINT"}, {SIGHUP, "got SIGHUP"}}) {
      ::kill(-launcher, signal);  // the group, as a terminal does: the ranks are not in it
      run.comes(text);
    }
    ::kill(launcher, SIGTERM);
  });
  INFO(run.outcome().output);
  CHECK(run.outcome().exit_code == 0);
  for (const char* text : {"its own group", "got SIGUSR1", "got SIGINT", "got SIGHUP", "got SIGTERM"}) {
    INFO(text);
    CHECK(run.said(text) == 3);
  }
  CHECK(run.gone());
}

TEST_CASE("a second SIGINT ends the ranks at once") {
  const Listening run([](int launcher, const Listening& run) {
    ::kill(launcher, SIGINT);
    run.comes("got SIGINT");
    ::kill(launcher, SIGINT);
  });
  INFO(run.outcome().output);
  CHECK(run.outcome().exit_code == 128 + SIGINT);
  CHECK(run.said("got SIGINT") == 3);
  CHECK(run.gone());
}

TEST_CASE("a launcher that is killed leaves no rank behind") {
  const Listening run([](int launcher, const Listening&) { ::kill(launcher, SIGKILL); });
  CHECK(run.outcome().exit_code == 128 + SIGKILL);
  CHECK(run.said("its own group") == 3);
  CHECK(run.gone());
}

TEST_CASE("numbers that do not fit are refused") {
  const auto refused = [](const RankLaunch& launch, const std::string& text) {
    CHECK_THROWS_WITH(launch_ranks(launch), Contains(text));
  };
  refused({.ranks = 0}, "the number of ranks is 0, expected at least 1");
  refused({.machines = 0}, "the number of machines is 0, expected at least 1");
  refused({.machines = 2, .machine = 2}, "the number of this machine is 2, expected 0 to 1");
  refused({.ranks = 2, .machines = 2}, "2 machines, but the address of machine 0 is unknown");
  refused({.ranks = 2, .only_ranks = {0, 2}}, "a rank whose lines are asked for is 2, expected 0 to 1");
  refused({.ranks = 1, .tee_folder = "/dev/null/x"}, "cannot make /dev/null/x");
}
