// A GPU simulated in software. It registers implementations for CUDA's dispatch key, as libtorch_cuda does, in a process with only
// the CPU libtorch.
//
// The program loads it in place of libtorch_cuda if KDGAT_TEST_CUDA_LIBRARY names it; tests/gpu/software_card.rs compiles it. It
// models the parts of a GPU that a program can misuse:
// - GPU memory that the host cannot access (SIGSEGV), of limited size, filled with 0xFF when it is allocated;
//   an allocator that caches freed blocks per stream, counts, and fails with CUDA's out-of-memory text;
// - streams, events and record_stream. Every job has a required order: a read or write of memory that no event orders
//   after an earlier one on another stream is a fault, even if the values are correct. So is memory returned
//   too early to the pool or to the host;
// - with a seed, jobs that run late (copies, and all operators whose result shapes are known without running them);
// - copies that are asynchronous only with page-locked memory (cudaHostRegister), and otherwise make the host wait;
// - the last error of CUDA's runtime, which stays until it is read and is thrown at the next launch;
// - the current card of each thread, and which cards have a context;
// - CUDA graphs: a stream that is recorded does not run, a replay uses the recording's memory, which is a pool of its own;
// - NVML's names, capabilities, total and used memory; the share of memory in the allocator's settings.
//
// Results are those of the CPU: the CPU's kernels compute on the card's memory, and random numbers come from the CPU's generator,
// so that losses equal those of a run on the CPU.
//
// Kernels of the program run where it asks for them: compiled for the CPU, as jobs of the card's streams.
//
// Not modelled: NVRTC and the driver, splitting of blocks and
// fragmentation, temporary memory of operators (it is host memory), implicit synchronisation of the legacy default stream
// (libtorch's side streams do not wait for it either), peer access, speed (event times are made up: 10 GB/s for copies).
//
// Settings, all from the environment:
//   SOFTWARE_CARD_COUNT=N      cards (1)
//   SOFTWARE_CARD_MEMORY=BYTES memory of each (4 GiB)
//   SOFTWARE_CARD_SEED=N       0: each job runs when it is queued; otherwise late, by this seed
//   SOFTWARE_CARD_POISON=0     new memory is not filled
//   SOFTWARE_CARD_CHECK=0      ordering faults are not checked; results may show them
//   SOFTWARE_CARD_FAIL=KIND:N,KIND:N-M,KIND:N+  the N-th call of a kind fails, counted from one: allocate (out of memory), upload
//                                    (an allocation of a side stream), copy, launch, register, unregister, event, record, wait, synchronize, stream
//   SOFTWARE_CARD_LEAVE_OUT=A<B  waits of stream A for stream B are left out (0: default stream, 1: a side stream), or
//                                    record_stream: shows that each ordering rule is needed
//   SOFTWARE_CARD_SLOW=OPERATOR=MS  this operator takes so long, and the host that waits for the card waits as long; other
//                                    work takes no real time
//   SOFTWARE_CARD_WORKSPACE=BYTES  memory that the first matrix product of each stream takes for good, as cuBLAS does (0)
//   SOFTWARE_CARD_MIG=1        NVML says that the card is divided into slices
//   SOFTWARE_CARD_CAPABILITY=75  NVML's compute capability, 7.5 (9.0)
//   SOFTWARE_CARD_REPORT=FILE  counts, as JSON, when the process ends
//
// A process with a fault ends with exit code 86, one with a wrong setting with 87.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include "kernels.h"

namespace card {
namespace {

void write_report() {
  std::FILE* file = std::fopen(settings().report.c_str(), "w");
  if (file == nullptr) {
    refuse("SOFTWARE_CARD_REPORT=" + settings().report + " cannot be written");
  }
  const auto& counts = state().counts;
  std::fprintf(file, "{\n  \"fault\": %s,\n  \"calls\": {", state().fault.empty() ? "false" : "true");
  const char* separator = "";
  for (const auto& [kind, calls] : counts.calls) {
    std::fprintf(file, "%s\"%s\": %llu", std::exchange(separator, ", "), kind.c_str(), static_cast<unsigned long long>(calls));
  }
  const auto field = [&](const char* name, uint64_t value) {
    std::fprintf(file, ",\n  \"%s\": %llu", name, static_cast<unsigned long long>(value));
  };
  std::fprintf(file, "}");
  field("injected", counts.injected);
  field("blocking_copies", counts.blocking_copies);
  field("queued_copies", counts.queued_copies);
  field("copied_to_cards_bytes", counts.copied_to_cards);
  field("copied_to_hosts_bytes", counts.copied_to_hosts);
  field("late_operators", counts.late_operators);
  field("kernels", counts.kernels);
  field("slow_operators", counts.slow_operators);
  field("recordings", counts.recordings);
  field("replays", counts.replays);
  field("refused_uploads", counts.refused_uploads);
  field("beside_current_card", counts.beside_current_card);
  field("page_locked_ranges", runtime().locked.size());
  field("most_page_locked_bytes", runtime().most_locked_bytes);
  std::fprintf(file, ",\n  \"cards\": [");
  for (int index = 0; index < settings().cards; ++index) {
    auto& stats = memory().cards[index].stats;
    std::fprintf(
        file, "%s\n    {\"has_context\": %s, \"allocations\": %lld, \"allocated_bytes\": %lld, \"reserved_bytes\": %lld, \"refused\": %lld}",
        index == 0 ? "" : ",", (state().contexts >> index & 1) != 0 ? "true" : "false",
        static_cast<long long>(of(stats.allocation).allocated), static_cast<long long>(of(stats.allocated_bytes).current),
        static_cast<long long>(of(stats.reserved_bytes).current), static_cast<long long>(stats.num_ooms));
  }
  std::fprintf(file, "\n  ]\n}\n");
  std::fclose(file);
}

__attribute__((constructor)) void begin() {
  settings();
  c10::SetAllocator(kCUDA, &allocator());
  c10::CachingAllocator::AcceleratorAllocatorConfig::registerDeviceConfigParserHook(
      read_allocator_settings,
      {"backend", "release_lock_on_cudamalloc", "pinned_use_cuda_host_register", "pinned_num_register_threads",
       "pinned_reserve_segment_size_mb", "graph_capture_record_stream_reuse", "per_process_memory_fraction"});
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    if (const char* text = std::getenv(name)) {
      read_allocator_settings(text);
      break;
    }
  }
  std::fprintf(stderr, "software card: %d of %s\n", settings().cards, mebibytes(settings().memory).c_str());
}

__attribute__((destructor)) void end() {
  if (!settings().report.empty()) {
    write_report();
  }
  if (!state().fault.empty()) {
    std::fflush(nullptr);
    ::_exit(86);
  }
}

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

} // namespace
} // namespace card

// libtorch finds it by this name.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasCUDA() const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(card::settings().cards);
  }
  std::string showConfig() const override {
    return "  - Software card\n";
  }
  int getNumGPUs() const override {
    return card::settings().cards;
  }
  c10::DeviceIndex current_device() const override {
    return static_cast<c10::DeviceIndex>(card::current().card);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_device();
  }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return (card::state().contexts >> index & 1) != 0;
  }
  c10::Allocator* getCUDADeviceAllocator() const override {
    return &card::allocator();
  }
  c10::Device getDeviceFromPtr(void*) const override {
    return c10::Device(card::kCUDA, current_device());
  }
  bool isPinnedPtr(const void* pointer) const override {
    card::Lock lock(card::state().lock);
    return card::locked_range(pointer, 1) != nullptr;
  }
  // Used when seeds are set; operators draw from the CPU's generator.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::detail::createCPUGenerator(0);
    return generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator(0);
  }
  void deviceSynchronize(c10::DeviceIndex index) const override {
    card::Guard().synchronizeDevice(index);
  }
};

using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks);

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&card::fallback>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", TORCH_FN(card::empty_memory_format));
  library.impl("empty_strided", TORCH_FN(card::empty_strided));
  library.impl("resize_", TORCH_FN(card::resize));
  library.impl("record_stream", TORCH_FN(card::record_stream));
  library.impl("copy_", TORCH_FN(card::copy));
  library.impl("_copy_from", TORCH_FN(card::copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(card::copy_from_and_resize));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("native_dropout", TORCH_FN(card::native_dropout));
  library.impl("native_dropout_backward", TORCH_FN(card::native_dropout_backward));
  // Their out-variants change the shape of their out-argument.
  library.impl("abs", torch::CppFunction::makeFromBoxedFunction<&card::fallback>());
  library.impl("mse_loss", torch::CppFunction::makeFromBoxedFunction<&card::fallback>());
}
