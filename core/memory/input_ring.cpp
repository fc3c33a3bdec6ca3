#include "core/memory/input_ring.h"

#include "core/error.h"
#include "core/ops/elementwise.h"

namespace ottava {

InputRing::InputRing(Stream& compute, Arena& arena, std::span<const std::string_view> names, int64_t elements)
    : compute_(compute) {
  const bool is_real = compute.type() != DeviceType::meta;
  if (compute.type() == DeviceType::cuda) copies_ = Stream::cuda(compute.device().index);
  if (compute.type() == DeviceType::cpu) copies_ = Stream::cpu();
  for (size_t s = 0; s < kSlots; ++s) {
    Slot slot{.uploaded = Event(compute.device()), .taken = Event(compute.device())};
    int64_t bytes = 0;
    for (std::string_view name : names) {
      slot.device.push_back(arena.persistent(name, DType::i32, {elements}));
      bytes += aligned(slot.device.back().bytes());
    }
    if (is_real) {
      slot.pinned = PinnedInputs(compute.device(), bytes);
      slot.taken.record(compute);  // what has been done to this memory so far comes first
    }
    slots_.push_back(std::move(slot));
  }
}

void InputRing::upload(std::span<const std::span<const int32_t>> arrays) {
  if (uploads_ - takes_ == kSlots)
    fail("input ring", "{} uploads wait to be taken, and there are {} slots", uploads_ - takes_, kSlots);
  Slot& slot = slots_[uploads_++ % kSlots];
  if (!copies_) return;
  if (uploads_ > kSlots) slot.uploaded.synchronize();  // pinned memory is read until then,
  slot.taken.wait(*copies_);  // and device memory until the compute stream has copied it
  const StepProfile::Scope copying(profile_, "tokens to the GPU");
  slot.pinned.begin();
  for (size_t i = 0; i < arrays.size(); ++i) {
    const Tensor to = slot.device[i].slice(0, std::ssize(arrays[i]));
    copy(*copies_, slot.pinned.hold(arrays[i].data(), to), to);
  }
  slot.uploaded.record(*copies_);
}

void InputRing::take(std::span<const Tensor> places) {
  if (takes_ == uploads_) fail("input ring", "nothing has been uploaded that is not taken yet");
  Slot& slot = slots_[takes_++ % kSlots];
  slot.uploaded.wait(compute_);
  for (size_t i = 0; i < places.size(); ++i)
    copy(compute_, slot.device[i].slice(0, places[i].numel()).reshape(places[i].shape), places[i]);
  slot.taken.record(compute_);
}

}  // namespace ottava
