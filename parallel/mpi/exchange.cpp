#include "parallel/mpi/exchange.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "core/error.h"

namespace ottava::mpi {
namespace {

using Clock = std::chrono::steady_clock;

// Shared-memory MPI moves data inside its calls, so while data should be moving polls follow one another, with the core
// offered to others in between; afterwards (a peer is late) sleeping leaves the core to compute.
constexpr double kBytesPerSecond = 1e9;
constexpr auto kShortestSpin = std::chrono::microseconds(50);
constexpr auto kSleep = std::chrono::microseconds(50);

std::string text_of(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

}  // namespace

Session::~Session() {
  if (state_->failed()) return;
  if (comm != MPI_COMM_NULL) MPI_Comm_free(&comm);
  MPI_Finalize();
}

Exchange::~Exchange() { abandon(); }

void Exchange::check(int code, const char* call) const {
  if (code == MPI_SUCCESS) return;
  ProgressRecord at = state_->progress();
  fail<CommError>("mpi", "rank {}: {} failed in {} '{}' (axis {}, step {}): {}", state_->rank(), call,
                  name_of(at.collective), at.label, at.axis, at.step, text_of(code));
}

void Exchange::add(MPI_Request request, Expected expected) {
  requests_.push_back(request);
  expected_.push_back(expected);
  pending_bytes_ += std::max<int64_t>(expected.bytes, 0);
}

void Exchange::send(const void* data, int64_t bytes, int peer, int tag) {
  for (int64_t done = 0; done < bytes;) {
    int64_t piece = std::min(bytes - done, session_->largest_message_bytes);
    MPI_Request request;
    check(MPI_Isend(static_cast<const char*>(data) + done, static_cast<int>(piece), MPI_BYTE, peer, tag,
                    session_->comm, &request), "MPI_Isend");
    add(request, {-1, peer});
    done += piece;
  }
}

void Exchange::receive(void* data, int64_t bytes, int peer, int tag) {
  for (int64_t done = 0; done < bytes;) {
    int64_t piece = std::min(bytes - done, session_->largest_message_bytes);
    MPI_Request request;
    check(MPI_Irecv(static_cast<char*>(data) + done, static_cast<int>(piece), MPI_BYTE, peer, tag, session_->comm,
                    &request), "MPI_Irecv");
    add(request, {piece, peer});
    done += piece;
  }
}

void Exchange::signal(int peer, int tag) {
  MPI_Request request;
  check(MPI_Isend(nullptr, 0, MPI_BYTE, peer, tag, session_->comm, &request), "MPI_Isend");
  add(request, {-1, peer});
}

void Exchange::await_signal(int peer, int tag) {
  MPI_Request request;
  check(MPI_Irecv(nullptr, 0, MPI_BYTE, peer, tag, session_->comm, &request), "MPI_Irecv");
  add(request, {0, peer});
}

void Exchange::finish() {
  size_t left = requests_.size();
  finished_.resize(left);
  statuses_.resize(left);
  auto limit = std::chrono::duration<double>(state_->timeout_seconds());
  auto spin = std::chrono::duration<double>(static_cast<double>(pending_bytes_) / kBytesPerSecond) + kShortestSpin;
  auto moved = Clock::now();
  while (left > 0) {
    int count = 0;
    int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, finished_.data(),
                            statuses_.data());
    for (int i = 0; i < (count == MPI_UNDEFINED ? 0 : count); ++i) {
      const MPI_Status& status = statuses_[static_cast<size_t>(i)];
      const Expected& expected = expected_[static_cast<size_t>(finished_[static_cast<size_t>(i)])];
      int error = code == MPI_ERR_IN_STATUS ? status.MPI_ERROR : MPI_SUCCESS, kind = MPI_SUCCESS, bytes = 0;
      if (error != MPI_SUCCESS) MPI_Error_class(error, &kind);
      if (kind != MPI_ERR_TRUNCATE) check(error, "the message");
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      if (kind == MPI_ERR_TRUNCATE || (expected.bytes >= 0 && bytes != expected.bytes)) {
        ProgressRecord at = state_->progress();
        fail<CommError>("mpi", "rank {} received {} bytes than {} from rank {} in {} '{}' (axis {}, step {}): the ranks "
                        "disagree about its size", state_->rank(), kind == MPI_ERR_TRUNCATE ? "more" : "fewer",
                        expected.bytes, expected.peer, name_of(at.collective), at.label, at.axis, at.step);
      }
    }
    if (code != MPI_ERR_IN_STATUS) check(code, "MPI_Testsome");
    if (count == MPI_UNDEFINED) break;
    left -= static_cast<size_t>(count);
    if (left == 0) break;
    if (state_->failed()) throw CommError(state_->failure());
    auto now = Clock::now();
    if (count > 0) moved = now;
    if (now - moved > limit) throw CommError(state_->timeout_message());
    if (state_->is_awaited() || now - moved < spin) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
  requests_.clear();
  expected_.clear();
  pending_bytes_ = 0;
}

void Exchange::abandon() noexcept {
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    if (expected_[i].bytes >= 0) MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
  requests_.clear();
  expected_.clear();
  pending_bytes_ = 0;
}

}  // namespace ottava::mpi
