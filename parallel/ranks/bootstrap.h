#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"

namespace ottava {

/// The least that ranks need before a fast transport exists: an all-gather of a few bytes. Carries
/// NCCL ids, addresses of the ledger, names of GPUs.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// What every rank said, by rank. All ranks call it, in the same order. Throws CommError.
  virtual std::vector<std::string> all_gather(std::string_view mine) = 0;
};

/// A number of this job that rank 0 draws: what its connections say first, by which the ranks know each other
/// from whoever else reaches their ports. All ranks call it.
uint64_t job_token(Bootstrap& bootstrap);

/// Over any communicator that moves CPU tensors.
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
