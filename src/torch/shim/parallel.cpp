// libtorch's own thread pool: one set of threads serves its operations and ours.
#include "shim.h"

#include <ATen/Parallel.h>

extern "C" char* kdgat_parallel_for(int64_t count, int64_t grain, void* context, void (*body)(void*, int64_t, int64_t)) {
  return kdgat::guarded([&] {
    at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) { body(context, begin, end); });
  });
}
