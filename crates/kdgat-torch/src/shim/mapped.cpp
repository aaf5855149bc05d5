// Tensors over memory that Rust keeps alive.
#include "shim.h"

#include <ATen/ATen.h>

#include <memory>

// Creates a tensor over `data`. Calls `release(owner)` once no tensor uses the memory any more. If it fails, the caller
// still owns `owner`.
extern "C" char* kdgat_tensor_over(const void* data, const int64_t* sizes, size_t dimensions, int8_t kind, void* owner,
                                   void (*release)(void*), at::Tensor** tensor) {
  return kdgat::guarded([&] {
    auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(kind)).device(at::kCPU);
    // Allocated before the tensor exists, so that nothing can fail between its creation and the return.
    auto result = std::make_unique<at::Tensor>();
    // libtorch calls the deleter even if it fails half-way; `made` is then false and nothing is released here.
    auto made = std::make_shared<bool>(false);
    auto let_go = [owner, release, made](void*) {
      if (*made) {
        release(owner);
      }
    };
    *result = at::from_blob(const_cast<void*>(data), at::IntArrayRef(sizes, dimensions), let_go, options);
    *made = true;
    *tensor = result.release();
  });
}
