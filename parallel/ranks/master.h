#pragma once

#include <functional>
#include <list>
#include <string>
#include <vector>

#include "parallel/comm/bootstrap.h"
#include "parallel/comm/tcp.h"
#include "parallel/ranks/launch.h"

namespace ottava {

/// The bootstrap of ranks that meet at rank 0 over TCP, before anything else connects them. Rank 0 listens on
/// the master's port; the others try all addresses of the master's name until rank 0 answers at one or the
/// time is up.
class MasterBootstrap final : public Bootstrap {
 public:
  struct Self {
    int rank = 0, size = 1;
  };
  /// Throws CommError if the port is taken (if only a connection has it, it is waited for, up to 65 s), rank
  /// 0 may not open a file for each rank (on all ranks, once they have come), the master is not reached or is
  /// that of a job with another number of ranks, ranks do not come (naming them), or two have the same
  /// number. Rank 0 sends other visitors away and waits on; a rank that ends meanwhile may be started again.
  /// After a fifth of the time its log says which ranks it waits for, and again each time that it has waited
  /// twice as long. `while_waiting`, if given, is called every quarter of a second or sooner while other
  /// ranks are awaited, in all_gather() too; what it throws ends that.
  MasterBootstrap(const Master& master, Self self, double timeout_seconds,
                  std::function<void()> while_waiting = {});

  int rank() const override { return self_.rank; }
  int size() const override { return self_.size; }
  std::vector<std::string> all_gather(std::string_view mine) override;
  /// An address of this machine that the others can reach: the one from which this rank reaches the master.
  std::string own_address() const;

 private:
  struct Visitor;
  /// Rank 0's part: listens until every rank has come. The others' part is find_master().
  void await_ranks(const Master& master);
  void find_master(const Master& master);
  std::string refuse_if_files_lack();
  /// "1, 2": those that have not come or, with a refusal, not heard of it.
  std::string missing_ranks() const;
  /// Waits up to `seconds`, but no longer than a quarter of one, for something to happen; takes in one that
  /// knocks, answers those that have said which ranks they are, and sends away those that do not.
  void receive_visitors(tcp::Listener& listener, std::list<Visitor>& visitors, double seconds);
  /// Gives the visitor its place, or the refusal, if it is a rank.
  bool welcome(tcp::Connection& visitor, const std::string& greeting);
  std::string receive(int from);

  Self self_;
  std::string master_address_;
  double timeout_seconds_;
  std::function<void()> while_waiting_;
  std::string refusal_;                       ///< rank 0: in place of a place for anybody
  std::vector<bool> told_;                    ///< with a refusal, by rank
  std::vector<tcp::Connection> connections_;  ///< rank 0: by rank; the others: to rank 0
};

}  // namespace ottava
