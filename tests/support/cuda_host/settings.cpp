#include "settings.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace ottava::cuda_host {
namespace {

[[noreturn]] void reject(const char* name, std::string_view value, const char* expected) {
  std::fprintf(stderr, "cuda_host: %s=%.*s: expected %s\n", name, static_cast<int>(value.size()),
               value.data(), expected);
  std::exit(2);
}

Settings from_environment() {
  Settings result;
  if (const char* text = std::getenv("OTTAVA_CUDA_HOST_ORDER")) {
    std::string_view order = text;
    if (order == "reverse") {
      result.order = Order::reverse;
    } else if (order.starts_with("random:")) {
      result.order = Order::random;
      result.seed = std::strtoull(text + 7, nullptr, 10) + 1;
    } else if (order != "forward") {
      reject("OTTAVA_CUDA_HOST_ORDER", order, "forward, reverse or random:SEED");
    }
  }
  if (const char* text = std::getenv("OTTAVA_CUDA_HOST_STREAMS")) {
    std::string_view streams = text;
    if (streams == "lazy") {
      result.streams = Streams::lazy;
    } else if (streams == "random") {
      result.streams = Streams::random;
    } else if (streams != "eager") {
      reject("OTTAVA_CUDA_HOST_STREAMS", streams, "eager, lazy or random");
    }
  }
  if (const char* text = std::getenv("OTTAVA_CUDA_HOST_COLLECTIVES")) {
    std::string_view collectives = text;
    if (collectives == "late") {
      result.collectives = Collectives::late;
    } else if (collectives == "in_order") {
      result.collectives = Collectives::in_order;
    } else if (collectives != "prompt") {
      reject("OTTAVA_CUDA_HOST_COLLECTIVES", collectives, "prompt, late or in_order");
    }
  }
  if (const char* text = std::getenv("OTTAVA_CUDA_HOST_PAGEABLE")) {
    std::string_view pageable = text;
    if (pageable == "late") {
      result.pageable = Pageable::late;
    } else if (pageable != "staged") {
      reject("OTTAVA_CUDA_HOST_PAGEABLE", pageable, "staged or late");
    }
  }
  if (const char* text = std::getenv("OTTAVA_CUDA_HOST_DRIVER")) {
    std::string_view driver = text;
    if (driver == "none") {
      result.driver = Driver::none;
    } else if (driver == "old") {
      result.driver = Driver::old;
    } else if (driver == "without_gpus") {
      result.driver = Driver::without_gpus;
    } else if (driver != "good") {
      reject("OTTAVA_CUDA_HOST_DRIVER", driver, "good, none, old or without_gpus");
    }
  }
  if (const char* text = std::getenv("OTTAVA_CUDA_HOST_CAPABILITY")) {
    result.capability = std::atoi(text);
    if (result.capability < 50 || result.capability > 200)
      reject("OTTAVA_CUDA_HOST_CAPABILITY", text, "89, 90, 100");
  }
  return result;
}

}  // namespace

Settings& settings() {
  static Settings value = from_environment();
  return value;
}

uint64_t next_random() {
  static uint64_t state = 0;  // a guarded initialiser would be seen by the thread sanitizer
  if (state == 0) state = settings().seed * 0x9e3779b97f4a7c15u;
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return state * 0x2545f4914f6cdd1du;
}

}  // namespace ottava::cuda_host
