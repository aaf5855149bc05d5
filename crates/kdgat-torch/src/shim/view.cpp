// Properties of host tensors, read in one call.
#include "shim.h"

#include <ATen/ATen.h>

// True if `tensor` is contiguous on the CPU with elements of type `kind`; then also writes their address and number.
extern "C" bool kdgat_elements(const at::Tensor* tensor, int8_t kind, void** elements, int64_t* count) noexcept {
  try {
    if (!tensor->defined() || !tensor->device().is_cpu() || tensor->layout() != at::kStrided ||
        tensor->scalar_type() != static_cast<at::ScalarType>(kind) || !tensor->is_contiguous()) {
      return false;
    }
    *elements = tensor->data_ptr();
    *count = tensor->numel();
    return true;
  } catch (...) {
    // The caller queries the properties one by one and gets the error.
    return false;
  }
}

// True if this is the only handle to `tensor` and its memory: nobody else can read what is written to it.
extern "C" bool kdgat_is_only_handle(const at::Tensor* tensor) noexcept {
  return tensor->defined() && tensor->use_count() == 1 && tensor->has_storage() && tensor->storage().use_count() == 1;
}
