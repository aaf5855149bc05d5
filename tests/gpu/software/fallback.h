// All other operators: the CPU's kernels compute on the card's memory, at once or as a late or recorded job.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "graphs.h"
#include "operators.h"

namespace card {

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

// Shapes of the results of a recorded call, whose arguments have no values yet: those of zeros. Empty if they depend on values.
inline std::optional<Stack> shapes_of_zeros(const Call& call) {
  static const std::set<std::string> of_values = {
      "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::bincount",
      "aten::repeat_interleave"};
  if (of_values.count(call.op.schema().name()) != 0) {
    return std::nullopt;
  }
  const auto zeros = [](const at::Tensor& tensor) {
    auto made = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU).requires_grad(false)).zero_();
    keep_wrapped(made, tensor);
    return made;
  };
  Plainly plainly;
  Stack stack = call.replaced(zeros, at::kCPU);
  run_on_cpu(call.op, stack);
  return stack;
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
  push(stream, {std::move(run)}, operator_ms(call.op.schema().name()));
}

// Runs the operator immediately, after the queued work of its stream, because only the computation gives the shapes of its results,
// or because it must draw the next random numbers.
inline void run_now(const Call& call, const std::vector<int>& same_as, bool tensors, Stack& results) {
  const int stream = current_stream(call.card);
  check_not_recorded(stream, call.op.schema().name());
  const uint64_t job = next_job(stream);
  note_uses(call, stream, job);
  push(stream, {}, operator_ms(call.op.schema().name()));
  force(stream, job);
  check_fault();
  Stack stack = call.replaced([](const at::Tensor& tensor) { return tensor.is_cuda() ? as_job_sees(tensor) : tensor; }, at::kCPU);
  run_on_cpu(call.op, stack);
  if (!tensors) {
    join(state().host, state().streams[stream].clock);
    spend_until(state().streams[stream].free_at);
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

// Takes the workspace that cuBLAS keeps for each stream that multiplies matrices.
inline void take_workspace(const std::string& name, int stream) {
  static const std::set<std::string> products = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"};
  static std::map<int, c10::DataPtr>* taken = new std::map<int, c10::DataPtr>;
  if (settings().workspace > 0 && products.count(name) != 0 && taken->count(stream) == 0) {
    OnCard on(stream / kStreams);
    taken->emplace(stream, allocator().allocate(settings().workspace));
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
  const int stream = current_stream(call.card);
  state().counts.beside_current_card += call.card != current().card;
  take_workspace(op.schema().name(), stream);
  const bool recorded = is_recorded(stream);
  const bool is_late = recorded || settings().seed != 0 || !state().streams[stream].jobs.empty();
  const bool late = is_late && tensors && (recorded || !call.has_generator) && !has_empty_targets(call);
  state().recording.draws_numbers |= recorded && call.has_generator;
  const bool makes = std::find(same_as.begin(), same_as.end(), -1) != same_as.end();
  std::optional<Stack> like = late && makes ? shapes(call) : std::optional<Stack>(Stack());
  if (recorded && late && !like.has_value()) {
    like = shapes_of_zeros(call);
  }
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
