// Operators: the card implements memory, views and copies; the CPU's kernels do everything else on the card's memory.
#pragma once

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
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

// ---- everything else

using Stack = torch::jit::Stack;

// One call of an operator: its arguments as its job sees them, and its results.
struct Call {
  const c10::OperatorHandle& op;
  Stack arguments;
  int card = -1;
  bool has_generator = false;

  Call(const c10::OperatorHandle& op, Stack& stack) : op(op) {
    const auto count = op.schema().arguments().size();
    arguments.assign(stack.end() - static_cast<int64_t>(count), stack.end());
    stack.resize(stack.size() - count);
    each_tensor([&](const at::Tensor& tensor, size_t) {
      if (card < 0 && tensor.is_cuda()) {
        card = tensor.get_device();
      }
    });
    for (const auto& argument : arguments) {
      if (card < 0 && argument.isDevice() && argument.toDevice().is_cuda()) {
        card = index_of(argument.toDevice());
      }
    }
    for (const auto& argument : op.schema().arguments()) {
      has_generator |= argument.name() == "generator";
    }
    card = card < 0 ? current().card : card;
  }

  template <typename Body>
  void each_tensor(Body body) const {
    for (size_t index = 0; index < arguments.size(); ++index) {
      const auto& value = arguments[index];
      if (value.isTensor()) {
        if (value.toTensor().defined()) {
          body(value.toTensor(), index);
        }
      } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorList()) {
          body(tensor, index);
        }
      } else if (value.isOptionalTensorList()) {
        for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
          if (tensor.has_value() && tensor->defined()) {
            body(*tensor, index);
          }
        }
      }
    }
  }

  bool writes(size_t argument) const {
    const auto* alias = op.schema().arguments()[argument].alias_info();
    return alias != nullptr && alias->isWrite();
  }

  // The arguments with every tensor replaced, and every card replaced by `device`.
  template <typename Replace>
  Stack replaced(Replace replace, c10::Device device) const {
    Stack made;
    made.reserve(arguments.size());
    for (const auto& value : arguments) {
      if (value.isTensor()) {
        made.emplace_back(value.toTensor().defined() ? replace(value.toTensor()) : at::Tensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorList()) {
          list.push_back(tensor.defined() ? replace(tensor) : at::Tensor());
        }
        made.emplace_back(std::move(list));
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
          list.push_back(tensor.has_value() && tensor->defined() ? std::optional(replace(*tensor)) : tensor);
        }
        made.emplace_back(std::move(list));
      } else if (value.isDevice()) {
        made.emplace_back(device);
      } else {
        made.push_back(value);
      }
    }
    return made;
  }

  // For each result, the argument that it aliases, or none for a new tensor. False if any result is not a tensor.
  bool results_are_tensors(std::vector<int>& same_as) const {
    for (const auto& result : op.schema().returns()) {
      const auto type = result.type();
      const bool is_list = type->isSubtypeOf(*c10::ListType::ofTensors());
      if (!is_list && !type->isSubtypeOf(*c10::TensorType::get())) {
        return false;
      }
      int same = -1;
      if (const auto* alias = result.alias_info()) {
        TORCH_CHECK(alias->isWrite(), "software card: ", op.schema().name(), " makes a view, which is not modelled");
        for (size_t index = 0; index < arguments.size(); ++index) {
          const auto* other = op.schema().arguments()[index].alias_info();
          if (other != nullptr && other->beforeSets() == alias->beforeSets()) {
            same = static_cast<int>(index);
          }
        }
      }
      same_as.push_back(same);
    }
    return true;
  }
};

inline at::Tensor for_a_job(const at::Tensor& tensor) {
  // A launch copies the values of small host tensors.
  return tensor.is_cuda() ? as_job_sees(tensor) : tensor.clone();
}

inline at::Tensor without_values(const at::Tensor& tensor) {
  auto made = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta).requires_grad(false));
  keep_wrapped(made, tensor);
  return made;
}

inline at::Tensor new_on(int card, const at::Tensor& like) {
  return like.defined() ? empty_strided_on(card, like.sizes(), like.strides(), like.scalar_type()) : at::Tensor();
}

inline c10::IValue new_on(int card, const c10::IValue& like) {
  if (like.isTensor()) {
    return new_on(card, like.toTensor());
  }
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : like.toTensorList()) {
    list.push_back(new_on(card, tensor));
  }
  return list;
}

template <typename Body>
void each_pair(const c10::IValue& first, const c10::IValue& second, Body body) {
  if (first.isTensor()) {
    body(first.toTensor(), second.toTensor());
    return;
  }
  const auto firsts = first.toTensorVector(), seconds = second.toTensorVector();
  for (size_t index = 0; index < std::min(firsts.size(), seconds.size()); ++index) {
    body(firsts[index], seconds[index]);
  }
}

// Shapes of the new tensors of a call, from its Meta kernel; empty if it has none.
inline std::optional<Stack> shapes(const Call& call) {
  // Frequent operators without a Meta kernel.
  const auto& name = call.op.schema().name();
  if (name == "aten::relu") {
    return Stack{without_values(call.arguments[0].toTensor())};
  }
  if (name == "aten::index_select" && call.arguments[0].toTensor().dim() > 0) {
    const auto& values = call.arguments[0].toTensor();
    auto sizes = values.sizes().vec();
    sizes[c10::maybe_wrap_dim(call.arguments[1].toInt(), values.dim())] = call.arguments[2].toTensor().numel();
    return Stack{at::empty(sizes, values.options().device(at::kMeta).requires_grad(false))};
  }
  if (!call.op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
    return std::nullopt;
  }
  try {
    Plainly plainly;
    Stack stack = call.replaced(without_values, at::kMeta);
    call.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    return stack;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

inline void run_on_cpu(const c10::OperatorHandle& op, Stack& stack) {
  Plainly plainly;
  // Boxed operators with several out-arguments access these after releasing them.
  const Stack arguments = stack;
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
}

// True if an out-argument has no elements, so that the operator sets its size.
inline bool has_empty_targets(const Call& call) {
  bool found = false;
  call.each_tensor([&](const at::Tensor& tensor, size_t index) { found |= call.writes(index) && tensor.numel() == 0; });
  return found;
}

inline void note_uses(const Call& call, int stream, uint64_t job) {
  const auto& name = call.op.schema().name();
  call.each_tensor([&](const at::Tensor& tensor, size_t index) { use(tensor, stream, job, call.writes(index), name); });
  check_fault();
}

// Queues the operator. Its results get memory now, and values when the job runs.
inline void run_late(const Call& call, const std::vector<int>& same_as, const Stack& like, Stack& results) {
  const int stream = current_stream(call.card);
  std::vector<c10::IValue> seen_results(same_as.size());
  for (size_t index = 0; index < same_as.size(); ++index) {
    if (same_as[index] >= 0) {
      results.push_back(call.arguments[same_as[index]]);
      continue;
    }
    results.push_back(new_on(call.card, like[index]));
    const auto& made = results.back();
    if (made.isTensor()) {
      seen_results[index] = made.toTensor().defined() ? as_job_sees(made.toTensor()) : at::Tensor();
    } else {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : made.toTensorList()) {
        list.push_back(tensor.defined() ? as_job_sees(tensor) : at::Tensor());
      }
      seen_results[index] = list;
    }
  }
  const uint64_t job = next_job(stream);
  note_uses(call, stream, job);
  for (size_t index = 0; index < same_as.size(); ++index) {
    if (same_as[index] < 0) {
      each_pair(results[results.size() - same_as.size() + index], seen_results[index], [&](const at::Tensor& made, const at::Tensor&) {
        use(made, stream, job, true, call.op.schema().name());
      });
    }
  }
  ++state().counts.late_operators;
  auto run = [op = call.op, stack = call.replaced(for_a_job, at::kCPU), seen_results, same_as]() mutable {
    run_on_cpu(op, stack);
    for (size_t index = 0; index < same_as.size(); ++index) {
      if (same_as[index] < 0) {
        each_pair(seen_results[index], stack[index], [](at::Tensor to, const at::Tensor& from) {
          if (to.defined() && from.defined() && to.numel() > 0) {
            Plainly plainly;
            to.copy_(from);
          }
        });
      }
    }
  };
  push(stream, {std::move(run)}, duration_ms(0, false));
}

// Runs the operator immediately, after the queued work of its stream, because only the computation gives the shapes of its results,
// or because it must draw the next random numbers.
inline void run_now(const Call& call, const std::vector<int>& same_as, bool tensors, Stack& results) {
  const int stream = current_stream(call.card);
  const uint64_t job = next_job(stream);
  note_uses(call, stream, job);
  push(stream, {}, duration_ms(0, false));
  force(stream, job);
  check_fault();
  Stack stack = call.replaced([](const at::Tensor& tensor) { return tensor.is_cuda() ? as_job_sees(tensor) : tensor; }, at::kCPU);
  run_on_cpu(call.op, stack);
  if (!tensors) {
    join(state().host, state().streams[stream].clock);
    results.insert(results.end(), stack.begin(), stack.end());
    return;
  }
  for (size_t index = 0; index < same_as.size(); ++index) {
    if (same_as[index] >= 0) {
      results.push_back(call.arguments[same_as[index]]);
      // The operator may have resized it.
      each_pair(results.back(), stack[index], [&](const at::Tensor& target, const at::Tensor& computed) {
        if (target.sizes() != computed.sizes()) {
          Plainly plainly;
          card::resize(target, computed.sizes(), std::nullopt);
          force(stream, state().streams[stream].queued);
          as_job_sees(target).copy_(computed);
        }
      });
      continue;
    }
    results.push_back(new_on(call.card, stack[index]));
    force(stream, state().streams[stream].queued);
    each_pair(results.back(), stack[index], [&](const at::Tensor& made, const at::Tensor& computed) {
      if (made.defined() && made.numel() > 0) {
        Plainly plainly;
        as_job_sees(made).copy_(computed);
      }
    });
  }
}

inline void fallback(const c10::OperatorHandle& op, Stack* stack) {
  Lock lock(state().lock);
  check_call("launch");
  check_last_error(op.schema().name());
  Call call(op, *stack);
  std::vector<int> same_as;
  const bool tensors = call.results_are_tensors(same_as);
  Stack results;
  const bool is_late = settings().seed != 0 || !state().streams[current_stream(call.card)].jobs.empty();
  const bool late = is_late && tensors && !call.has_generator && !has_empty_targets(call);
  const bool makes = std::find(same_as.begin(), same_as.end(), -1) != same_as.end();
  std::optional<Stack> like = late && makes ? shapes(call) : std::optional<Stack>(Stack());
  if (late && like.has_value()) {
    run_late(call, same_as, *like, results);
  } else {
    run_now(call, same_as, tensors, results);
  }
  stack->insert(stack->end(), results.begin(), results.end());
}

// Draws the same numbers as the CPU's dropout.
inline std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double probability, std::optional<bool> train) {
  if (!train.value_or(true) || probability == 0) {
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  auto noise = at::empty_like(input).bernoulli_(1 - probability);
  auto mask = noise.to(at::kBool);
  return {input.mul(noise.div_(1 - probability)), mask};
}

// Rounds like the CPU's: batch norm and Adam turn pure rounding errors into updates as large as the learning rate.
inline at::Tensor native_dropout_backward(const at::Tensor& gradient, const at::Tensor& mask, double scale) {
  return gradient.mul(mask.to(gradient.scalar_type()).div_(1 / scale));
}

} // namespace card
