#include <unistd.h>

#include "tests/apps/step/small_job.h"
#include "tests/support/catch.h"
#include "tests/support/launched.h"
#include "tests/support/skip.h"

// Two machines as two network namespaces with a cable between them: a launcher on each.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

class TwoMachines {
 public:
  TwoMachines() {
    made_ = run_command("ip netns add " + name(0) + " && ip netns add " + name(1) + " && ip link add " +
                        cable(0) + " netns " + name(0) + " type veth peer name " + cable(1) + " netns " +
                        name(1) + " && " + set_up(0) + " && " + set_up(1))
                .exit_code == 0;
  }
  ~TwoMachines() { run_command("ip netns del " + name(0) + "; ip netns del " + name(1)); }
  /// False where the system does not let this user make them.
  bool exist() const { return made_; }

  /// The command on two ranks of each machine. The machines' names differ, as those of real ones do.
  std::string launch(int machine, const std::string& command) const {
    return "ip netns exec " + name(machine) + " unshare --uts /bin/sh -c 'hostname " + name(machine) +
           "; exec " OTTAVA " launch -n 2 --nnodes 2 --node-rank " + std::to_string(machine) +
           " --master-addr " + address(0) + " --" + command + "'";
  }

 private:
  static std::string name(int machine) {
    return "ottava-" + std::to_string(::getpid()) + "-" + std::to_string(machine);
  }
  static std::string cable(int machine) { return "cable" + std::to_string(machine); }
  static std::string address(int machine) { return "10.83.7." + std::to_string(machine + 1); }
  static std::string set_up(int machine) {
    const std::string ip = "ip -n " + name(machine);
    return ip + " link set lo up && " + ip + " addr add " + address(machine) + "/24 dev " + cable(machine) +
           " && " + ip + " link set " + cable(machine) + " up";
  }
  bool made_ = false;
};

}  // namespace

TEST_CASE("a launcher on each of two machines: ranks train alike, and all end when one is killed") {
  const TwoMachines machines;
  if (!machines.exist()) return skip("no network namespaces can be made here");
  const auto both = [&](const std::string& command) {
    return machines.launch(1, command) + " & second=$!; " + machines.launch(0, command) +
           "; code=$?; wait $second; echo codes $code $?";
  };
  Job job, here;
  const Outcome o = run_command(both(job.train()));
  INFO(o.output);
  CHECK_THAT(o.output, Contains("codes 0 0"));
  const Outcome four = run_command(std::string(OTTAVA) + " launch -n 4 --" + here.train());
  REQUIRE(four.exit_code == 0);
  REQUIRE(here.curve().size() == 12);
  for (const auto& [step, point] : here.curve()) CHECK(job.curve().at(step).loss == point.loss);

  Job lost;
  const Outcome end = run_command(both(lost.train(" --training.steps 100000")), [&](int) {
    wait_until(200, [&] { return lost.last_step() >= 3; });
    if (const int rank = process_of_rank(lost.file(), 3)) ::kill(rank, SIGKILL);
  });
  INFO(end.output);
  CHECK_THAT(end.output, Contains("codes 1 137"));
  std::map<int, std::string> accounts = end.accounts();
  for (int rank : {0, 1, 2}) CHECK(accounts[rank].starts_with("[comm] rank 3 is gone"));
  CHECK(wait_until(60, [&] { return processes_with(lost.file()).empty(); }));
}
