#include "parallel/comm/tcp.h"

#include <chrono>
#include <thread>

#include "tests/support/catch.h"

using namespace ottava;

TEST_CASE("a connection reads no more at once than the longest message, and loses none of many") {
  constexpr size_t kMessage = 64 << 10, kMessages = 128, kLongest = 1 << 20;
  tcp::Listener listener;
  std::thread sender([&] {
    tcp::Connection to = tcp::connect_to(listener.endpoint(), 20);
    for (size_t i = 0; i < kMessages; ++i) {
      if (!to.send(std::string(kMessage, static_cast<char>('a' + i % 26)))) return;
    }
  });
  tcp::Connection from = listener.accept();
  // Meanwhile the kernel takes in as much as it will.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  size_t received = 0, most = 0;
  bool open = true, in_order = true;
  while (open || received < kMessages) {
    open = from.read_available();
    size_t together = 0;
    while (const std::optional<std::string> message = from.next()) {
      in_order = in_order && *message == std::string(kMessage, static_cast<char>('a' + received % 26));
      ++received, ++together;
    }
    most = std::max(most, together);
    if (!open && together == 0) break;
    if (together == 0) std::this_thread::yield();
  }
  sender.join();
  CHECK(received == kMessages);
  CHECK(in_order);
  CHECK(most * kMessage <= kLongest + kMessage);
}
