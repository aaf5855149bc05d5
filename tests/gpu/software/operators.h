// Operators that the card implements itself: memory, views and copies.
#pragma once

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "guard.h"
#include "runtime.h"

namespace card {

// Turns off autograd and mixed precision while a job works on tensors.
struct Plainly {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard no_mixed_precision{c10::autocast_dispatch_keyset};
};

inline Block* block_of(const at::Tensor& tensor) {
  const auto& pointer = tensor.storage().data_ptr();
  return pointer.get_deleter() == &Allocator::deallocate_any ? static_cast<Block*>(pointer.get_context()) : nullptr;
}

// Keeps the flag of a wrapped number, which has less weight in type promotion.
inline void keep_wrapped(const at::Tensor& made, const at::Tensor& from) {
  if (from.unsafeGetTensorImpl()->is_wrapped_number()) {
    made.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
}

// A card tensor's memory as jobs see it. It does not keep the memory alive, so that freeing it too early is detected.
inline at::Tensor as_job_sees(const at::Tensor& tensor) {
  const auto options = tensor.options().device(at::kCPU).requires_grad(false);
  if (tensor.numel() == 0) {
    return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  }
  auto seen = at::from_blob(usable(tensor.get_device(), tensor.data_ptr()), tensor.sizes(), tensor.strides(), options);
  keep_wrapped(seen, tensor);
  return seen;
}

inline void use(const at::Tensor& tensor, int stream, uint64_t job, bool writes, const std::string& what) {
  if (tensor.defined() && tensor.is_cuda() && tensor.numel() > 0) {
    if (Block* block = block_of(tensor)) {
      use(*block, stream, job, writes, what);
    }
  }
}

// Makes a card current while an operator works on it.
struct OnCard {
  int previous;
  explicit OnCard(int index) : previous(std::exchange(current().card, index)) {}
  ~OnCard() {
    current().card = previous;
  }
};

inline at::Tensor empty_strided_on(int index, c10::IntArrayRef sizes, c10::IntArrayRef strides, at::ScalarType type) {
  OnCard on(index);
  return at::detail::empty_strided_generic(sizes, strides, &allocator(), c10::DispatchKeySet(c10::DispatchKey::CUDA), type);
}

inline at::Tensor empty_memory_format(
    c10::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>, std::optional<at::Device> device,
    std::optional<bool>, std::optional<at::MemoryFormat> format) {
  OnCard on(index_of(device.value_or(c10::Device(kCUDA))));
  return at::detail::empty_generic(
      sizes, &allocator(), c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(type), format);
}

inline at::Tensor empty_strided(
    c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> type, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  return empty_strided_on(index_of(device.value_or(c10::Device(kCUDA))), sizes, strides, c10::dtype_or_default(type));
}

// Grows the storage into new memory, as CUDA does.
inline const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef sizes, std::optional<at::MemoryFormat>) {
  Lock lock(state().lock);
  auto* tensor = self.unsafeGetTensorImpl();
  const size_t before = self.storage().nbytes();
  tensor->set_sizes_contiguous(sizes);
  const size_t needed = (tensor->numel() + tensor->storage_offset()) * tensor->dtype().itemsize();
  if (tensor->numel() > 0 && needed > before) {
    OnCard on(self.get_device());
    auto grown = allocator().allocate(needed);
    const int stream = current_stream(self.get_device());
    if (before > 0) {
      void *to = usable(self.get_device(), grown.get()), *from = usable(self.get_device(), self.storage().data_ptr().get());
      use(self, stream, next_job(stream), false, "resize_");
      push(stream, {[=] { std::memcpy(to, from, before); }}, 0);
    }
    self.storage().set_data_ptr_noswap(std::move(grown));
    self.storage().set_nbytes(needed);
  }
  return self;
}

inline void record_stream(at::Tensor& self, c10::Stream stream) {
  allocator().recordStream(self.storage().data_ptr(), stream);
}

// ---- copies

inline void copy_inside(at::Tensor& self, const at::Tensor& source) {
  const int index = self.get_device(), from = source.get_device(), stream = current_stream(from);
  if (from != index) {
    // Like CUDA's copy between cards: on the source's stream, which waits for the target's; afterwards the target's waits for it.
    Event event;
    card::record(event, current_stream(index));
    let_wait(stream, event);
  }
  const uint64_t job = next_job(stream);
  use(source, stream, job, false, "copy_");
  use(self, stream, job, true, "copy_");
  check_fault();
  auto to = as_job_sees(self), seen = as_job_sees(source);
  push(stream, {[to, seen]() mutable { Plainly plainly; to.copy_(seen); }}, duration_ms(self.nbytes(), from != index));
  if (from != index) {
    Event event;
    card::record(event, stream);
    let_wait(current_stream(index), event);
  }
}

// Copies between the host and a card. The copy is asynchronous only if requested, from or to page-locked memory, and without
// conversion; otherwise the host waits for the stream and the copy.
inline void copy_over_the_bus(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const at::Tensor& on_card = self.is_cuda() ? self : source;
  const at::Tensor& on_host = self.is_cuda() ? source : self;
  const int stream = current_stream(on_card.get_device());
  auto& counts = state().counts;
  (self.is_cuda() ? counts.copied_to_cards : counts.copied_to_hosts) += on_card.nbytes();
  const bool plain = self.scalar_type() == source.scalar_type() && self.sizes() == source.sizes() &&
      self.strides() == source.strides() && self.is_non_overlapping_and_dense();
  Locked* locked = plain ? locked_range(on_host.data_ptr(), on_host.nbytes()) : nullptr;
  const std::string what = self.is_cuda() ? "a copy from the host" : "a copy to the host";
  const uint64_t job = next_job(stream);
  use(on_card, stream, job, self.is_cuda(), what);
  check_fault();
  auto seen = as_job_sees(on_card);
  const double takes = duration_ms(on_card.nbytes(), true);
  if (non_blocking && locked != nullptr) {
    ++counts.queued_copies;
    auto& copies = locked->copies;
    copies.erase(
        std::remove_if(copies.begin(), copies.end(), [](const Access& copy) { return comes_before(copy, state().host); }), copies.end());
    copies.push_back({stream, job, what});
    const size_t bytes = on_host.nbytes();
    void *host = on_host.data_ptr(), *there = seen.data_ptr();
    const bool up = self.is_cuda();
    push(stream, {[=] { up ? std::memcpy(there, host, bytes) : std::memcpy(host, there, bytes); }}, takes);
    return;
  }
  ++counts.blocking_copies;
  at::Tensor to = self.is_cuda() ? seen : self, from = self.is_cuda() ? source : seen;
  push(stream, {[to, from]() mutable { Plainly plainly; to.copy_(from); }}, takes);
  wait_on_host(stream);
}

inline at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  Lock lock(state().lock);
  if (self.numel() == 0) {
    return self;
  }
  check_call("copy");
  state().counts.beside_current_card += (self.is_cuda() ? self : source).get_device() != current().card;
  const at::Tensor spread = source.sizes() == self.sizes() ? source : source.expand_as(self);
  if (self.is_cuda() && spread.is_cuda()) {
    copy_inside(self, spread);
  } else {
    TORCH_CHECK(self.is_cuda() ? spread.is_cpu() : self.is_cpu(), "software card: a copy between ", source.device(), " and ", self.device());
    copy_over_the_bus(self, spread, non_blocking);
  }
  return self;
}

inline at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  at::Tensor to = target;
  copy(to, self, non_blocking);
  return target;
}

inline at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  if (self.sizes() != target.sizes()) {
    target.resize_(self.sizes());
  }
  return copy_from(self, target, false);
}

} // namespace card
