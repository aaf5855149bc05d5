// Streams, events, copies and device memory through libtorch's device-generic interface: compiled without CUDA's
// headers, it drives CUDA once libtorch_cuda is loaded.
#include "shim.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

extern "C" {

struct KdgatStream {
  int64_t id;
  int8_t device;
};

struct KdgatDeviceStats {
  int64_t allocated, peak_allocated, reserved, peak_reserved, requested, peak_requested;
  int64_t retries, failures;
  uint64_t free_bytes, total_bytes;
};

bool kdgat_allocator_attribute(void* pointer, void (*deleter)(void*), uint8_t phase);
}

namespace {

constexpr auto kCUDA = c10::DeviceType::CUDA;

c10::impl::VirtualGuardImpl cuda() {
  TORCH_CHECK(
      c10::impl::hasDeviceGuardImpl(kCUDA),
      "no CUDA: libtorch_cuda is not loaded (a CPU-only libtorch, or not loaded at start)");
  c10::impl::VirtualGuardImpl guard(kCUDA);
  TORCH_CHECK(guard.deviceCount() > 0, "no CUDA: libtorch_cuda is loaded, but found no usable GPU (see nvidia-smi)");
  // libtorch looks for CUDA once, at its first use.
  TORCH_CHECK(at::globalContext().hasCUDA(), "no CUDA: libtorch_cuda was loaded after libtorch had already looked for it");
  at::globalContext().lazyInitDevice(kCUDA);
  return guard;
}

// Guard that makes a device current.
struct CurrentDevice {
  c10::impl::VirtualGuardImpl guard = cuda();
  c10::Device previous;

  explicit CurrentDevice(int8_t device) : previous(guard.exchangeDevice(c10::Device(kCUDA, device))) {}
  ~CurrentDevice() {
    guard.uncheckedSetDevice(previous);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
};

c10::DeviceAllocator& device_allocator() {
  cuda();
  return *c10::getDeviceAllocator(kCUDA);
}

c10::Stream unpack(KdgatStream stream) {
  return c10::Stream::unpack3(stream.id, stream.device, kCUDA);
}

KdgatStream pack(const c10::Stream& stream) {
  return {stream.id(), stream.device_index()};
}

} // namespace

extern "C" {

char* kdgat_device_count(int32_t* count) {
  return kdgat::guarded([&] { *count = cuda().deviceCount(); });
}

char* kdgat_device_make_current(int8_t device) {
  return kdgat::guarded([&] { cuda().setDevice(c10::Device(kCUDA, device)); });
}

char* kdgat_device_synchronize(int8_t device) {
  return kdgat::guarded([&] {
    CurrentDevice current(device);
    current.guard.synchronizeDevice(device);
  });
}

// ---- streams

char* kdgat_stream_from_pool(int8_t device, bool high_priority, KdgatStream* stream) {
  return kdgat::guarded(
      [&] { *stream = pack(cuda().getStreamFromGlobalPool(c10::Device(kCUDA, device), high_priority)); });
}

char* kdgat_stream_current(int8_t device, KdgatStream* stream) {
  return kdgat::guarded([&] { *stream = pack(cuda().getStream(c10::Device(kCUDA, device))); });
}

char* kdgat_stream_default(int8_t device, KdgatStream* stream) {
  return kdgat::guarded([&] { *stream = pack(cuda().getDefaultStream(c10::Device(kCUDA, device))); });
}

// Makes `stream` and its device current; writes the stream previously current on that device, and the previous device.
char* kdgat_stream_enter(KdgatStream stream, KdgatStream* previous, int8_t* previous_device) {
  return kdgat::guarded([&] {
    auto guard = cuda();
    *previous_device = guard.exchangeDevice(c10::Device(kCUDA, stream.device)).index();
    *previous = pack(guard.exchangeStream(unpack(stream)));
  });
}

char* kdgat_stream_leave(KdgatStream previous, int8_t previous_device) {
  return kdgat::guarded([&] {
    auto guard = cuda();
    guard.exchangeStream(unpack(previous));
    // Like the end of libtorch's own guards: does not create a context on a GPU that has none.
    guard.uncheckedSetDevice(c10::Device(kCUDA, previous_device));
  });
}

char* kdgat_stream_synchronize(KdgatStream stream) {
  return kdgat::guarded([&] { cuda().synchronizeStream(unpack(stream)); });
}

char* kdgat_stream_query(KdgatStream stream, bool* done) {
  return kdgat::guarded([&] { *done = cuda().queryStream(unpack(stream)); });
}

char* kdgat_stream_native(KdgatStream stream, void** handle) {
  return kdgat::guarded([&] { *handle = cuda().getStreamNativeHandle(unpack(stream)); });
}

char* kdgat_record_stream(const at::Tensor* tensor, KdgatStream stream) {
  return kdgat::guarded([&] { tensor->record_stream(unpack(stream)); });
}

// ---- events

char* kdgat_event_new(bool timed, c10::Event** event) {
  return kdgat::guarded([&] {
    cuda();
    *event = new c10::Event(kCUDA, timed ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT);
  });
}

void kdgat_event_free(c10::Event* event) {
  delete event;
}

char* kdgat_event_record(c10::Event* event, KdgatStream stream) {
  return kdgat::guarded([&] {
    CurrentDevice current(stream.device);
    event->record(unpack(stream));
  });
}

char* kdgat_event_block(const c10::Event* event, KdgatStream stream) {
  return kdgat::guarded([&] { event->block(unpack(stream)); });
}

char* kdgat_event_query(const c10::Event* event, bool* done) {
  return kdgat::guarded([&] { *done = event->query(); });
}

char* kdgat_event_synchronize(const c10::Event* event) {
  return kdgat::guarded([&] { event->synchronize(); });
}

char* kdgat_event_elapsed(const c10::Event* start, const c10::Event* end, double* milliseconds) {
  return kdgat::guarded([&] { *milliseconds = start->elapsedTime(*end); });
}

// ---- tensors

char* kdgat_copy(at::Tensor* target, const at::Tensor* source, bool non_blocking) {
  return kdgat::guarded([&] {
    c10::NoGradGuard unrecorded;
    target->copy_(*source, non_blocking);
  });
}

// A tensor over memory that `release(context)` frees. Takes `context` even on an error.
char* kdgat_from_blob(
    void* data, const int64_t* sizes, size_t dimensions, int8_t kind,
    void* context, void (*release)(void*), at::Tensor** tensor) {
  return kdgat::guarded([&] {
    auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(kind)).device(at::kCPU);
    // From here on, the maker or the tensor releases the context.
    auto made = at::for_blob(data, at::IntArrayRef(sizes, dimensions))
                    .context(context, release)
                    .options(options)
                    .make_tensor();
    *tensor = new at::Tensor(std::move(made));
  });
}

// Counts the tensor's storage under `phase` from now on, if our host allocator owns it.
char* kdgat_attribute(const at::Tensor* tensor, uint8_t phase, bool* attributed) {
  return kdgat::guarded([&] {
    *attributed = false;
    if (tensor->defined() && tensor->has_storage() && tensor->device().is_cpu()) {
      const c10::DataPtr& pointer = tensor->storage().data_ptr();
      *attributed = kdgat_allocator_attribute(pointer.get_context(), pointer.get_deleter(), phase);
    }
  });
}

// ---- memory of a device

char* kdgat_device_stats(int8_t device, KdgatDeviceStats* stats) {
  return kdgat::guarded([&] {
    auto& allocator = device_allocator();
    auto memory = allocator.getMemoryInfo(device);
    auto all = allocator.getDeviceStats(device);
    constexpr auto kind = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto &allocated = all.allocated_bytes[kind], &reserved = all.reserved_bytes[kind],
               &requested = all.requested_bytes[kind];
    *stats = {allocated.current, allocated.peak, reserved.current, reserved.peak, requested.current,
              requested.peak, all.num_alloc_retries, all.num_ooms, memory.first, memory.second};
  });
}

char* kdgat_device_reset_peak(int8_t device) {
  return kdgat::guarded([&] { device_allocator().resetPeakStats(device); });
}

// libtorch's allocator empties the caches of all devices, and waits for the current device.
char* kdgat_device_empty_cache(int8_t device) {
  return kdgat::guarded([&] {
    auto& allocator = device_allocator();
    CurrentDevice current(device);
    allocator.emptyCache();
  });
}

char* kdgat_device_set_settings(const char* settings) {
  return kdgat::guarded([&] { c10::CachingAllocator::setAllocatorSettings(settings); });
}

char* kdgat_device_settings(char** settings) {
  return kdgat::guarded([&] { *settings = kdgat::error_text(c10::CachingAllocator::getAllocatorSettings().c_str()); });
}

// ---- automatic mixed precision

char* kdgat_autocast_enter(bool on_cuda, int8_t kind, bool* was_enabled, int8_t* previous_kind) {
  return kdgat::guarded([&] {
    auto type = on_cuda ? kCUDA : at::kCPU;
    *was_enabled = at::autocast::is_autocast_enabled(type);
    *previous_kind = static_cast<int8_t>(at::autocast::get_autocast_dtype(type));
    at::autocast::set_autocast_dtype(type, static_cast<at::ScalarType>(kind));
    at::autocast::set_autocast_enabled(type, true);
    at::autocast::increment_nesting();
  });
}

char* kdgat_autocast_state(bool on_cuda, bool* enabled, int8_t* kind) {
  return kdgat::guarded([&] {
    auto type = on_cuda ? kCUDA : at::kCPU;
    *enabled = at::autocast::is_autocast_enabled(type);
    *kind = static_cast<int8_t>(at::autocast::get_autocast_dtype(type));
  });
}

char* kdgat_autocast_leave(bool on_cuda, bool was_enabled, int8_t previous_kind) {
  return kdgat::guarded([&] {
    auto type = on_cuda ? kCUDA : at::kCPU;
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    at::autocast::set_autocast_enabled(type, was_enabled);
    at::autocast::set_autocast_dtype(type, static_cast<at::ScalarType>(previous_kind));
  });
}
}
