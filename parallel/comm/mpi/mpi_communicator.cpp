#include "parallel/comm/mpi/mpi_communicator.h"

#include <dlfcn.h>

#include <climits>
#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "core/text/listed.h"
#include "parallel/comm/messages/host_communicator.h"
#include "parallel/comm/mpi/mpi_module.h"

namespace ottava::mpi {
namespace {

struct Module {
  const OttavaMpi* interface = nullptr;
  std::string problem;
};

std::vector<std::filesystem::path> places() {
  if (const char* own = std::getenv("OTTAVA_MPI_LIBRARY"); own && *own) return {own};
  std::error_code error;
  std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  const std::filesystem::path file = "lib/ottava/libottava_mpi.so";
  return {folder / file, folder.parent_path() / file};
}

// RTLD_GLOBAL: OpenMPI opens plugins of its own that expect to see its symbols.
Module open_module() {
  for (const std::filesystem::path& file : places()) {
    std::error_code error;
    if (!std::filesystem::exists(file, error)) continue;
    void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (!handle)
      return {nullptr, fmt::format("{} cannot be opened ({}): compile it for the MPI of this machine",
                                   file.string(), dlerror())};
    auto get = reinterpret_cast<decltype(&::ottava_mpi)>(dlsym(handle, "ottava_mpi"));
    const OttavaMpi* interface = get ? get() : nullptr;
    if (!interface || interface->interface_version != OTTAVA_MPI_INTERFACE) {
      return {nullptr,
              fmt::format("{} belongs to another version of ottava: compile it again", file.string())};
    }
    return {interface, {}};
  }
  std::string tried;
  for (const std::filesystem::path& file : places()) add_item(tried, file.string());
  return {nullptr, fmt::format("the MPI module was not found (looked at {}): compile it with build_mpi.sh, "
                               "or start the ranks with MASTER_ADDR and MASTER_PORT set, which needs no MPI",
                               tried)};
}

const Module& module() {
  static const Module opened = open_module();
  return opened;
}

class MpiPort final : public MessagePort {
 public:
  MpiPort(const OttavaMpi& mpi, std::shared_ptr<RankState> state, OttavaMpiWorld world,
          int64_t largest_message_bytes)
      : mpi_(mpi), state_(std::move(state)), world_(world), largest_message_bytes_(largest_message_bytes) {}
  // After a failure MPI is not finalized: it would wait for ranks that are gone.
  ~MpiPort() override {
    if (!state_->failed()) mpi_.finish();
  }
  std::string_view name() const override { return "mpi"; }
  int largest_tag() const override { return world_.largest_tag; }
  int64_t largest_message_bytes() const override { return largest_message_bytes_; }

  Ticket send(const void* data, int64_t bytes, int peer, int tag) override {
    Ticket ticket = nullptr;
    check(mpi_.send(data, static_cast<int>(bytes), peer, tag, &ticket), "MPI_Isend");
    return ticket;
  }
  Ticket receive(void* data, int64_t bytes, int peer, int tag) override {
    Ticket ticket = nullptr;
    check(mpi_.receive(data, static_cast<int>(bytes), peer, tag, &ticket), "MPI_Irecv");
    return ticket;
  }
  void test(std::span<Ticket> tickets, std::vector<Ended>& ended) override {
    found_.resize(tickets.size());
    int count = 0;
    check(mpi_.test(static_cast<int>(tickets.size()), tickets.data(), &count, found_.data()), "MPI_Testsome");
    for (int i = 0; i < count; ++i) {
      const OttavaMpiEnded& end = found_[i];
      check(end.error, "the message");
      ended.push_back({static_cast<size_t>(end.index), end.bytes, end.too_long != 0});
    }
  }
  void abandon_send(Ticket ticket) noexcept override { mpi_.abandon_send(ticket); }
  void abandon_receive(Ticket ticket) noexcept override { mpi_.abandon_receive(ticket); }

 private:
  void check(int code, const char* call) const {
    if (code == 0) return;
    char text[512];
    mpi_.error_text(code, text);
    fail<CommError>("mpi", "rank {}: {} failed in {}: {}", state_->rank(), call,
                    call_text(state_->progress()), text);
  }

  const OttavaMpi& mpi_;
  std::shared_ptr<RankState> state_;
  OttavaMpiWorld world_;
  int64_t largest_message_bytes_;
  std::vector<OttavaMpiEnded> found_;
};

}  // namespace

bool available() { return module().interface != nullptr; }

std::unique_ptr<Communicator> make_world(const WorldOptions& options) {
  if (!available()) fail<CommError>("mpi", "{}", module().problem);
  const OttavaMpi& mpi = *module().interface;
  if (mpi.is_started())
    fail<CommError>("mpi", "MPI was started before in this process, and it cannot be started twice");
  OttavaMpiWorld world{};
  if (int code = mpi.start(&world); code != 0)
    fail<CommError>("mpi", "MPI_Init_thread failed with code {}", code);
  if (!world.serialized) {
    fail<CommError>(
        "mpi",
        "this MPI library was built without thread support: use one that supports MPI_THREAD_SERIALIZED");
  }
  auto state = std::make_shared<RankState>(world.rank, world.size);
  state->set_timeout_seconds(options.timeout_seconds);
  auto port =
      std::make_shared<MpiPort>(mpi, state, world, std::min<int64_t>(options.largest_message_bytes, INT_MAX));
  return make_message_world(std::move(port), std::move(state), options.workspace_bytes);
}

}  // namespace ottava::mpi
