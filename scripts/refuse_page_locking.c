/* Preloaded by scripts/gpu-check: the CUDA runtime refuses to lock pages of host memory, as where the system allows no more. */
#include <stddef.h>

int cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
  (void)pointer, (void)bytes, (void)flags;
  return 2; /* cudaErrorMemoryAllocation */
}
