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

TEST_CASE("a message that a peer takes only a part of ends the connection: nothing can follow it") {
  tcp::Listener listener;
  tcp::Connection to = tcp::connect_to(listener.endpoint(), 20), from = listener.accept();
  constexpr size_t kMessage = 100'000;
  int sent = 0, received = 0;
  while (to.send(std::string(kMessage, 'a'))) ++sent;  // until nothing has been taken for two seconds
  bool open = true, whole = true;
  const auto read = [&] {
    open = from.read_available();
    while (const std::optional<std::string> message = from.next()) {
      whole = whole && message->size() == kMessage;
      ++received;
    }
  };
  while (open && received < sent) read();
  CHECK_FALSE(to.send("more"));
  for (int i = 0; i < 2000 && open; ++i) {
    read();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK_FALSE(open);
  CHECK(received == sent);
  CHECK(whole);
}
