// Current card and stream of a thread, and events.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "memory.h"

namespace card {

constexpr auto kCUDA = c10::DeviceType::CUDA;

inline int index_of(c10::Device device) {
  const int index = device.has_index() ? device.index() : current().card;
  TORCH_CHECK(index >= 0 && index < settings().cards, "CUDA error: invalid device ordinal (", index, " of ", settings().cards, ")");
  return index;
}

inline int index_of(const c10::Stream& stream) {
  return index_of(stream.device()) * kStreams + static_cast<int>(stream.id());
}

inline c10::Stream stream_of(int card, int id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kCUDA, static_cast<c10::DeviceIndex>(card)), id);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kCUDA;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    setDevice(device);
    return previous;
  }
  c10::Device getDevice() const override {
    return c10::Device(kCUDA, static_cast<c10::DeviceIndex>(current().card));
  }
  // Same as cudaSetDevice since CUDA 12: a card that becomes current gets a context; a card that is current already does not.
  void setDevice(c10::Device device) const override {
    Lock lock(state().lock);
    const int index = index_of(device);
    if (index != current().card) {
      open_context(index);
    }
    current().card = index;
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current().card = device.has_index() ? device.index() : current().card;
  }
  c10::Stream getStream(c10::Device device) const override {
    const int card = index_of(device);
    return stream_of(card, current().stream[card]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(index_of(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    Lock lock(state().lock);
    check_call("stream");
    static std::array<int, kMaxCards> handed_out{};
    const int card = index_of(device);
    return stream_of(card, 1 + handed_out[card]++ % (kStreams - 1));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return getStreamFromGlobalPool(device, false);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const int card = index_of(stream.device());
    return stream_of(card, std::exchange(current().stream[card], static_cast<int>(stream.id())));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return &state().streams[index_of(stream)];
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  // As in CUDA, the stream's card is current meanwhile. Returning to the earlier card gives that a context.
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag flag) const override {
    Lock lock(state().lock);
    if (*event == nullptr) {
      check_call("event");
      auto made = std::make_unique<Event>();
      made->timed = flag == c10::EventFlag::BACKEND_DEFAULT;
      *event = made.release();
    }
    check_call("record");
    const c10::Device earlier = exchangeDevice(stream.device());
    open_context(stream.device_index());
    card::record(*static_cast<Event*>(*event), index_of(stream));
    setDevice(earlier);
  }
  void block(void* event, const c10::Stream& stream) const override {
    Lock lock(state().lock);
    if (event != nullptr) {
      check_call("wait");
      const c10::Device earlier = exchangeDevice(stream.device());
      let_wait(index_of(stream), *static_cast<Event*>(event));
      setDevice(earlier);
    }
  }
  bool queryEvent(void* event) const override {
    Lock lock(state().lock);
    check_fault();
    const auto* of = static_cast<Event*>(event);
    if (of == nullptr || of->stream < 0) {
      return true;
    }
    if (settings().seed != 0) {
      progress();
    }
    return state().streams[of->stream].done >= of->job;
  }
  void synchronizeEvent(void* event) const override {
    Lock lock(state().lock);
    check_call("synchronize");
    const auto* of = static_cast<Event*>(event);
    if (of != nullptr && of->stream >= 0) {
      force(of->stream, of->job);
      join(state().host, of->clock);
      spend_until(of->time);
      check_fault();
    }
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    Lock lock(state().lock);
    const auto *from = static_cast<Event*>(start), *to = static_cast<Event*>(end);
    TORCH_CHECK(from && to && from->timed && to->timed, "CUDA error: invalid resource handle");
    return to->time - from->time;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(settings().cards);
  }
  bool queryStream(const c10::Stream& stream) const override {
    Lock lock(state().lock);
    if (settings().seed != 0) {
      progress();
    }
    return state().streams[index_of(stream)].jobs.empty();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Lock lock(state().lock);
    check_call("synchronize");
    wait_on_host(index_of(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    Lock lock(state().lock);
    check_call("synchronize");
    open_context(index < 0 ? current().card : index);
    synchronize_card(index < 0 ? current().card : index);
  }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    allocator().recordStream(pointer, stream);
  }
};

} // namespace card
