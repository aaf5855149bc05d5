// Loops of ours on libtorch's own threads.
#include "shim.h"

#include <ATen/Parallel.h>

extern "C" char* kdgat_parallel_for(int64_t threads, void* context, void (*body)(void*, int64_t, int64_t)) {
  return kdgat::guarded([&] {
    // One index a thread: which part of the work each of them does is not decided here.
    at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) { body(context, begin, end); });
  });
}
