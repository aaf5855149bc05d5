// Functions that the program loads by name from CUDA's libraries: page-locking, the last error of a thread, NVML, a delay.
#pragma once

#include "memory.h"

namespace card {

constexpr int kInvalidValue = 1;
constexpr int kMemoryAllocation = 2;
constexpr int kAlreadyRegistered = 712;
constexpr int kNotRegistered = 713;

// A page-locked range of host memory, and the copies that read or write it.
struct Locked {
  size_t size = 0;
  std::vector<Access> copies;
};

struct Runtime {
  std::map<char*, Locked> locked;
  uint64_t most_locked_bytes = 0;
};

inline Runtime& runtime() {
  static Runtime* runtime = new Runtime;
  return *runtime;
}

// The last error of CUDA's runtime in this thread; it stays until it is read.
inline int& last_error() {
  thread_local int code = 0;
  return code;
}

inline int failed(int code) {
  return last_error() = code;
}

// The page-locked range that contains all these bytes.
inline Locked* locked_range(const void* start, size_t bytes) {
  auto* address = static_cast<char*>(const_cast<void*>(start));
  auto& locked = runtime().locked;
  auto found = locked.upper_bound(address);
  if (found == locked.begin()) {
    return nullptr;
  }
  --found;
  return address + bytes <= found->first + found->second.size ? &found->second : nullptr;
}

// Throws the error of an earlier call, as the check after a kernel launch does.
inline void check_last_error(const std::string& launched) {
  const int code = std::exchange(last_error(), 0);
  TORCH_CHECK(code == 0, "CUDA error: error ", code, " of an earlier call to the runtime was found when ", launched, " was launched");
}

} // namespace card

extern "C" {

int cudaHostRegister(void* start, size_t size, unsigned) {
  using namespace card;
  Lock lock(state().lock);
  open_context(current().card);
  if (fails("register")) {
    return failed(kMemoryAllocation);
  }
  if (start == nullptr || size == 0) {
    return failed(kInvalidValue);
  }
  if (locked_range(start, 1) != nullptr) {
    return failed(kAlreadyRegistered);
  }
  runtime().locked[static_cast<char*>(start)] = {size, {}};
  uint64_t bytes = 0;
  for (const auto& [address, locked] : runtime().locked) {
    bytes += locked.size;
  }
  runtime().most_locked_bytes = std::max(runtime().most_locked_bytes, bytes);
  return 0;
}

int cudaHostUnregister(void* start) {
  using namespace card;
  Lock lock(state().lock);
  auto found = runtime().locked.find(static_cast<char*>(start));
  if (found == runtime().locked.end()) {
    return failed(kNotRegistered);
  }
  for (const auto& copy : found->second.copies) {
    if (!comes_before(copy, state().host)) {
      note_disorder("page-locked memory is given back while " + copy.what + " on " + name_of(copy.stream) +
                 " may still use it: the host has not waited for it");
      force(copy.stream, copy.job);
    }
  }
  runtime().locked.erase(found);
  return fails("unregister") ? failed(kMemoryAllocation) : 0;
}

int cudaGetLastError() {
  return std::exchange(card::last_error(), 0);
}

int cudaPeekAtLastError() {
  return card::last_error();
}

const char* cudaGetErrorString(int code) {
  switch (code) {
    case 0:
      return "no error";
    case card::kInvalidValue:
      return "invalid argument";
    case card::kMemoryAllocation:
      return "out of memory";
    case card::kAlreadyRegistered:
      return "part or all of the requested memory range is already mapped";
    case card::kNotRegistered:
      return "pointer does not correspond to a registered memory region";
    default:
      return "unrecognized error code";
  }
}

// ---- the part of NVML that the program uses: names, capabilities, and the memory of whole cards

int nvmlInit_v2() {
  return 0;
}

int nvmlShutdown() {
  return 0;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(card::settings().cards);
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index >= static_cast<unsigned>(card::settings().cards)) {
    return 6; // not found
  }
  *device = reinterpret_cast<void*>(static_cast<uintptr_t>(index) + 1);
  return 0;
}

int nvmlDeviceGetName(void*, char* name, unsigned length) {
  std::snprintf(name, length, "Software card");
  return 0;
}

int nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) {
  *major = card::settings().capability / 10;
  *minor = card::settings().capability % 10;
  return 0;
}

int nvmlSystemGetDriverVersion(char* version, unsigned length) {
  std::snprintf(version, length, "580.0");
  return 0;
}

// A card that is divided into slices.
int nvmlDeviceGetMigMode(void*, unsigned* current, unsigned* pending) {
  *current = *pending = card::settings().is_sliced ? 1 : 0;
  return 0;
}

struct NvmlMemory {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(void* device, NvmlMemory* info) {
  using namespace card;
  Lock lock(state().lock);
  const auto index = reinterpret_cast<uintptr_t>(device) - 1;
  const auto used = static_cast<unsigned long long>(of(memory().cards[index].stats.reserved_bytes).current);
  *info = {info->version, settings().memory, 0, settings().memory - used, used};
  return 0;
}
}

// ---- a function of libtorch_cuda that the program loads by mangled name

namespace at::cuda {

// `at::cuda::sleep`: long work.
__attribute__((visibility("default"))) void sleep(int64_t cycles) {
  using namespace card;
  Lock lock(state().lock);
  Job job;
  job.sleeps = true;
  push(current_stream(current().card), std::move(job), static_cast<double>(cycles) / 1e6);
}

} // namespace at::cuda
