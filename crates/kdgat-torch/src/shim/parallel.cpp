// Runs our loops on libtorch's threads.
#include "shim.h"

#include <ATen/Parallel.h>

extern "C" char* kdgat_parallel_for(int64_t threads, void* context, void (*body)(void*, int64_t, int64_t)) {
  return kdgat::guarded([&] {
    // One index per thread: `body` decides which part of the work each thread does.
    at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) { body(context, begin, end); });
  });
}
