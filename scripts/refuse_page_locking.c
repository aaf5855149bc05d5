/* Preloaded by scripts/gpu-check: cudaHostRegister fails, as on a system that does not allow more page-locked memory. */
#include <stddef.h>

int cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
  (void)pointer, (void)bytes, (void)flags;
  return 2; /* cudaErrorMemoryAllocation */
}
