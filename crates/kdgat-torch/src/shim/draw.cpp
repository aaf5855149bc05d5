// Random numbers from a separate generator: the whole process shares torch's default one.
#include "shim.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

// Fills `tensor` (on the CPU) with numbers uniform in [low, high).
extern "C" char* kdgat_fill_uniform(const at::Tensor* tensor, double low, double high, uint64_t seed) noexcept {
  return kdgat::guarded([&] { tensor->uniform_(low, high, at::detail::createCPUGenerator(seed)); });
}

// Fills `tensor` (on the CPU) with standard normal numbers.
extern "C" char* kdgat_fill_normal(const at::Tensor* tensor, uint64_t seed) noexcept {
  return kdgat::guarded([&] { tensor->normal_(0.0, 1.0, at::detail::createCPUGenerator(seed)); });
}
