// The elements of tensors on the host, asked for in one call.
#include "shim.h"

#include <ATen/ATen.h>

// Whether `tensor` is contiguous on the CPU with elements of type `kind`; if so, where they lie and how many they are.
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
    // The caller asks again, call by call, and gets the error.
    return false;
  }
}

// Whether nobody else can read what is written to `tensor`: this is the only handle to it, and to its memory.
extern "C" bool kdgat_is_only_handle(const at::Tensor* tensor) noexcept {
  return tensor->defined() && tensor->use_count() == 1 && tensor->has_storage() && tensor->storage().use_count() == 1;
}
