// An autograd node whose backward is a Rust function, gradients with given output gradients, and assignment of `.grad`.
// Tensors are passed as `at::Tensor*` on the heap, which is what tch's `Tensor` owns.
#include "shim.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

extern "C" {

// Arguments and results of a backward. The callee takes ownership of saved tensors and gradients, the caller of
// `results`. A null gradient means that nothing depends on that output.
struct KdgatBackward {
  at::Tensor* const* saved;
  size_t num_saved;
  at::Tensor* const* gradients;
  size_t num_gradients;
  const uint8_t* needed;
  at::Tensor** results;
  size_t num_results;
};

// `backward` returns null or an error text (malloc). Neither function lets a panic escape.
struct KdgatFunction {
  char* (*backward)(const void* state, const KdgatBackward* call);
  void (*drop)(void* state);
  const char* name;
  // True if `backward` consists of recorded operations, so that gradients of gradients exist.
  bool twice;
};
}

namespace {

at::Tensor* to_heap(const at::Tensor& tensor) {
  return tensor.defined() ? new at::Tensor(tensor) : nullptr;
}

struct RustNode final : public Node {
  RustNode(const KdgatFunction& function, void* state) : function_(function), state_(state) {}

  ~RustNode() override {
    drop_state();
  }

  std::string name() const override {
    return function_.name;
  }

  void save(const at::Tensor& tensor) {
    bool is_output = tensor.defined() && tensor.grad_fn().get() == this;
    saved_.emplace_back(tensor, is_output);
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& saved : saved_) {
      saved.reset_data();
    }
    drop_state();
  }

  variable_list apply(variable_list&& gradients) override {
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(
        function_.twice || !c10::GradMode::is_enabled(),
        name(), " cannot be differentiated twice: run backward with create_graph = false");
    TORCH_CHECK(
        state_ != nullptr,
        "backward through ", name(), " a second time: its saved tensors are freed; keep the graph in the first backward");
    std::vector<at::Tensor> saved;
    saved.reserve(saved_.size());
    for (const auto& variable : saved_) {
      saved.push_back(variable.unpack(getptr()));
    }
    std::vector<uint8_t> needed(num_outputs());
    for (size_t i = 0; i < needed.size(); ++i) {
      needed[i] = task_should_compute_output(i);
    }
    return call(std::move(saved), std::move(gradients), needed);
  }

 private:
  // Passes ownership of saved tensors and gradients: what the callee drops is freed while it still runs.
  variable_list call(
      std::vector<at::Tensor>&& saved,
      variable_list&& gradients,
      const std::vector<uint8_t>& needed) {
    std::vector<at::Tensor*> saved_pointers, gradient_pointers, results(needed.size(), nullptr);
    for (auto& tensor : saved) {
      saved_pointers.push_back(new at::Tensor(std::move(tensor)));
    }
    for (auto& tensor : gradients) {
      gradient_pointers.push_back(tensor.defined() ? new at::Tensor(std::move(tensor)) : nullptr);
    }
    KdgatBackward call{
        saved_pointers.data(), saved_pointers.size(),
        gradient_pointers.data(), gradient_pointers.size(),
        needed.data(), results.data(), results.size()};
    char* error = function_.backward(state_, &call);
    variable_list taken(results.size());
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i] != nullptr) {
        taken[i] = std::move(*results[i]);
        delete results[i];
      }
    }
    if (error != nullptr) {
      std::string text = name() + ": " + error;
      std::free(error);
      throw std::runtime_error(text);
    }
    return taken;
  }

  void drop_state() {
    if (state_ != nullptr) {
      function_.drop(state_);
      state_ = nullptr;
    }
  }

  KdgatFunction function_;
  void* state_;
  std::vector<SavedVariable> saved_;
};

// Root node in front of a graph's outputs that passes their gradients on and no longer holds them: as arguments of the
// engine, they would live until its end.
struct HandOver final : public Node {
  HandOver(variable_list&& gradients, edge_list&& outputs) : gradients_(std::move(gradients)) {
    set_next_edges(std::move(outputs));
  }

  std::string name() const override {
    return "gradients of outputs";
  }

  variable_list apply(variable_list&& /*trigger*/) override {
    return std::move(gradients_);
  }

 private:
  variable_list gradients_;
};

variable_list gather(at::Tensor* const* tensors, size_t count) {
  variable_list list(count);
  for (size_t i = 0; i < count; ++i) {
    if (tensors[i] != nullptr) {
      list[i] = *tensors[i];
    }
  }
  return list;
}

} // namespace

extern "C" {

// True if operations on these inputs are currently recorded.
char* kdgat_autograd_recorded(at::Tensor* const* inputs, size_t num_inputs, uint8_t* recorded) {
  return kdgat::guarded([&] {
    *recorded = 0;
    for (size_t i = 0; c10::GradMode::is_enabled() && i < num_inputs; ++i) {
      *recorded |= inputs[i]->defined() && inputs[i]->requires_grad();
    }
  });
}

// Makes `outputs` the results of a new node over `inputs`. Takes `state` even on an error.
char* kdgat_autograd_attach(
    const KdgatFunction* function, void* state,
    at::Tensor* const* inputs, size_t num_inputs,
    at::Tensor* const* outputs, size_t num_outputs,
    at::Tensor* const* saved, size_t num_saved) {
  return kdgat::guarded([&] {
    std::shared_ptr<RustNode> node;
    try {
      // Same deleter as libtorch's own nodes: the last reference may be deep inside a graph, whose nodes it then
      // deletes iteratively instead of recursively.
      node = std::shared_ptr<RustNode>(new RustNode(*function, state), torch::autograd::deleteNode);
    } catch (...) {
      function->drop(state);
      throw;
    }
    edge_list edges;
    for (size_t i = 0; i < num_inputs; ++i) {
      bool recorded = inputs[i]->defined() && inputs[i]->requires_grad();
      edges.push_back(recorded ? torch::autograd::impl::gradient_edge(*inputs[i]) : Edge());
    }
    node->set_next_edges(std::move(edges));
    for (size_t i = 0; i < num_outputs; ++i) {
      at::Tensor& output = *outputs[i];
      bool is_input = false;
      for (size_t j = 0; j < num_inputs; ++j) {
        is_input = is_input || output.is_same(*inputs[j]);
      }
      TORCH_CHECK(
          !is_input && !output.requires_grad(),
          function->name, " returned a tensor that is an input or has a gradient of its own as output ", i,
          "; return a new tensor");
      if (c10::isFloatingType(output.scalar_type())) {
        torch::autograd::set_history(output, node);
      } else {
        node->add_input_metadata(Node::undefined_input());
      }
    }
    for (size_t i = 0; i < num_saved; ++i) {
      node->save(*saved[i]);
    }
  });
}

// Gradients of `outputs` with respect to `inputs`, weighted by `output_gradients` (null: ones, for scalars). Without
// inputs, adds the gradients to the leaves' `.grad`.
char* kdgat_autograd_gradients(
    at::Tensor* const* outputs, at::Tensor* const* output_gradients, size_t num_outputs,
    at::Tensor* const* inputs, size_t num_inputs, bool keep_graph, bool create_graph,
    at::Tensor** results) {
  return kdgat::guarded([&] {
    auto roots = gather(outputs, num_outputs);
    auto weights = gather(output_gradients, num_outputs);
    if (num_inputs == 0) {
      torch::autograd::backward(roots, weights, keep_graph, create_graph);
      return;
    }
    auto gradients = torch::autograd::grad(
        roots, gather(inputs, num_inputs), weights, keep_graph, create_graph, /*allow_unused=*/true);
    for (size_t i = 0; i < num_inputs; ++i) {
      results[i] = to_heap(gradients[i]);
    }
  });
}

// Same, but takes ownership of the outputs and their gradients and frees them as the backward passes them. All must be
// defined.
char* kdgat_autograd_consume(
    at::Tensor* const* outputs, at::Tensor* const* output_gradients, size_t num_outputs,
    at::Tensor* const* inputs, size_t num_inputs,
    at::Tensor** results) {
  variable_list weights;
  edge_list roots;
  char* error = kdgat::guarded([&] {
    for (size_t i = 0; i < num_outputs; ++i) {
      roots.push_back(torch::autograd::impl::gradient_edge(*outputs[i]));
      weights.push_back(*output_gradients[i]);
    }
  });
  for (size_t i = 0; i < num_outputs; ++i) {
    delete outputs[i];
    delete output_gradients[i];
  }
  if (error != nullptr) {
    return error;
  }
  return kdgat::guarded([&] {
    edge_list wanted;
    for (size_t i = 0; i < num_inputs; ++i) {
      wanted.push_back(torch::autograd::impl::gradient_edge(*inputs[i]));
    }
    at::Tensor trigger = at::empty({0}, weights.at(0).options());
    auto root = std::shared_ptr<HandOver>(
        new HandOver(std::move(weights), std::move(roots)), torch::autograd::deleteNode);
    root->add_input_metadata(trigger);
    edge_list start{Edge(root, 0)};
    root.reset();
    auto gradients = torch::autograd::Engine::get_default_engine().execute(
        start, {trigger}, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/false, wanted);
    for (size_t i = 0; i < num_inputs; ++i) {
      results[i] = to_heap(gradients[i]);
    }
  });
}

// Makes `tensor.grad` refer to `gradient` itself, not a copy; null removes it.
char* kdgat_set_grad(at::Tensor* tensor, const at::Tensor* gradient) {
  return kdgat::guarded([&] {
    if (gradient == nullptr) {
      tensor->mutable_grad().reset();
      return;
    }
    TORCH_CHECK(tensor->is_leaf() && tensor->requires_grad(), "set_grad: the tensor must be a leaf that requires a gradient");
    TORCH_CHECK(
        gradient->sizes() == tensor->sizes() && gradient->scalar_type() == tensor->scalar_type() &&
            gradient->device() == tensor->device(),
        "set_grad: a gradient of shape ", gradient->sizes(), ", ", gradient->scalar_type(), ", ", gradient->device(),
        " does not match a tensor of shape ", tensor->sizes(), ", ", tensor->scalar_type(), ", ", tensor->device());
    TORCH_CHECK(!gradient->requires_grad(), "set_grad: the gradient itself requires a gradient; detach it");
    tensor->mutable_grad() = *gradient;
  });
}
}
