// CUDA graphs: at::cuda::CUDAGraph, looked up by name in libtorch_cuda at first use. Its header needs CUDA's headers,
// which are not required to build kdgat.
#include "shim.h"

#include <dlfcn.h>

#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace {

// at::cuda::MempoolId_t, and cudaStreamCaptureModeThreadLocal: other threads, such as the teacher's, are not
// restricted.
using Pool = std::pair<unsigned long long, unsigned long long>;
constexpr int kThreadLocal = 1;

// The object of libtorch 2.11 has 104 bytes, and its constructor writes no further; a larger buffer does no harm.
constexpr size_t kBytes = 1024;

template <typename Signature>
Signature* find(const char* name) {
  void* symbol = dlsym(RTLD_DEFAULT, name);
  TORCH_CHECK(symbol != nullptr, "libtorch_cuda has no ", name, ": CUDA graphs need libtorch 2.11 with CUDA");
  return reinterpret_cast<Signature*>(symbol);
}

// Member functions with the Itanium ABI's signatures: the object is the first argument.
struct Functions {
  void (*construct)(void*, bool) = find<void(void*, bool)>("_ZN2at4cuda9CUDAGraphC1Eb");
  void (*destroy)(void*) = find<void(void*)>("_ZN2at4cuda9CUDAGraphD1Ev");
  void (*begin)(void*, Pool, int) =
      find<void(void*, Pool, int)>("_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode");
  void (*end)(void*) = find<void(void*)>("_ZN2at4cuda9CUDAGraph11capture_endEv");
  void (*replay)(void*) = find<void(void*)>("_ZN2at4cuda9CUDAGraph6replayEv");
  Pool (*new_pool)() = find<Pool()>("_ZN2at4cuda17graph_pool_handleEv");
};

// If the initialisation throws, the next call retries it: libtorch_cuda may be loaded later.
const Functions& functions() {
  static const Functions found;
  return found;
}

struct Recording {
  alignas(std::max_align_t) unsigned char object[kBytes] = {};
};

} // namespace

extern "C" {

// Creates a memory pool that several recordings share; they are replayed one after the other.
char* kdgat_graph_pool(uint64_t pool[2]) {
  return kdgat::guarded([&] {
    const Pool made = functions().new_pool();
    pool[0] = made.first;
    pool[1] = made.second;
  });
}

char* kdgat_graph_new(void** graph) {
  return kdgat::guarded([&] {
    auto recording = std::make_unique<Recording>();
    functions().construct(recording->object, false);
    *graph = recording.release();
  });
}

char* kdgat_graph_begin(void* graph, const uint64_t pool[2]) {
  return kdgat::guarded([&] {
    functions().begin(static_cast<Recording*>(graph)->object, Pool(pool[0], pool[1]), kThreadLocal);
  });
}

char* kdgat_graph_end(void* graph) {
  return kdgat::guarded([&] { functions().end(static_cast<Recording*>(graph)->object); });
}

char* kdgat_graph_replay(void* graph) {
  return kdgat::guarded([&] { functions().replay(static_cast<Recording*>(graph)->object); });
}

char* kdgat_graph_free(void* graph) {
  return kdgat::guarded([&] {
    std::unique_ptr<Recording> recording(static_cast<Recording*>(graph));
    functions().destroy(recording->object);
  });
}
}
