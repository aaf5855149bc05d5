// Tensors over memory that Rust keeps alive.
#include "shim.h"

#include <ATen/ATen.h>

#include <memory>

// Writes a tensor over `data`, which `release(owner)` lets go of once no tensor lies over it any more. On an error
// `owner` stays the caller's.
extern "C" char* kdgat_tensor_over(const void* data, const int64_t* sizes, size_t dimensions, int8_t kind, void* owner,
                                   void (*release)(void*), at::Tensor** tensor) {
  return kdgat::guarded([&] {
    auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(kind)).device(at::kCPU);
    // Allocated before the tensor exists: nothing can fail between its making and its being handed over.
    auto result = std::make_unique<at::Tensor>();
    // libtorch lets go of the memory also where it fails half-way: then nothing is released here.
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
