#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"

namespace ottava {

/// The least that ranks need before a fast transport exists: an all-gather of a few bytes. It carries NCCL
/// ids, addresses of the ledger, names of GPUs.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Every rank's text, by rank. All ranks call it, in the same order. Throws CommError.
  virtual std::vector<std::string> all_gather(std::string_view mine) = 0;
};

/// A random number that rank 0 draws for this job. Connections between ranks begin with it, so that a rank
/// recognises the others among all that reaches its port. All ranks call it.
uint64_t job_token(Bootstrap& bootstrap);

/// A bootstrap over any communicator that moves CPU tensors.
class CommunicatorBootstrap final : public Bootstrap {
 public:
  explicit CommunicatorBootstrap(Communicator& communicator) : communicator_(communicator) {}
  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  std::vector<std::string> all_gather(std::string_view mine) override;

 private:
  Communicator& communicator_;
};

}  // namespace ottava
