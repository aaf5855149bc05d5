// The allocator of host tensors: counts bytes exactly, refuses allocations beyond a limit, and caches freed blocks for
// the next step.
//
// One lock guards all counts, so that they are consistent (such as bytes by phase at the moment of the peak). It is
// held only for bookkeeping; memory is mapped and unmapped outside of it.
//
// A pool of buffers is allocated once for the tensors of batches. A thread that makes a batch takes a buffer and places the
// tensors in it one after another; the buffer returns to the pool with the last of them.
#include "shim.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace {

constexpr size_t kPhases = 16;
constexpr size_t kAlignment = 64;
constexpr size_t kCached = 4096;             // smaller blocks are not cached, but left to the C library
constexpr size_t kMapped = size_t(1) << 20;  // larger blocks are mapped directly, so that freeing returns them to the system
constexpr size_t kHugePage = size_t(2) << 20;
constexpr size_t kAlwaysKept = size_t(128) << 20;

struct Buffer;

// Header in front of each block's data.
struct alignas(kAlignment) Block {
  size_t requested;
  size_t capacity;   // usable bytes after this header
  uint64_t age;
  Buffer* buffer;    // the buffer that the block is in; null for a block of its own
  uint8_t phase;
  bool mapped;

  size_t footprint() const {
    return sizeof(Block) + capacity;
  }
  void* data() {
    return this + 1;
  }
  static Block* of(void* data) {
    return static_cast<Block*>(data) - 1;
  }
};
static_assert(sizeof(Block) == kAlignment);

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

struct BufferPool;

// Memory for the tensors of one batch.
struct Buffer {
  BufferPool* pool;
  char* begin;
  size_t bytes;
  size_t used = 0;      // bytes up to the end of the last block
  size_t live = 0;      // blocks that are not freed
  bool is_open = false;  // a thread places blocks in it
};

struct BufferPool {
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::deque<Buffer*> free;  // in the order in which they were released, so that all are used in turn
  bool is_dropped = false;
};

// Capacity of a new block for `bytes`: whole pages if mapped; otherwise one of eight sizes per power of two, so that
// blocks of similar sizes are interchangeable.
size_t capacity_for(size_t bytes) {
  if (bytes < kCached) {
    return round_up(bytes, kAlignment);
  }
  if (bytes + sizeof(Block) >= kMapped) {
    return round_up(bytes + sizeof(Block), 4096) - sizeof(Block);
  }
  size_t step = kCached / 8;
  while (step * 16 <= bytes) {
    step *= 2;
  }
  return round_up(bytes, step);
}

Block* obtain(size_t capacity) {
  size_t size = sizeof(Block) + capacity;
  if (size < kMapped) {
    void* memory = nullptr;
    if (::posix_memalign(&memory, kAlignment, size) != 0) {
      return nullptr;
    }
    auto* block = new (memory) Block{};
    block->capacity = capacity;
    return block;
  }
  bool huge = size >= 2 * kHugePage;
  size_t span = huge ? size + kHugePage : size;
  auto* memory = static_cast<char*>(::mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (memory == MAP_FAILED) {
    return nullptr;
  }
  if (huge) {
    // Aligned to huge pages: one page fault per 2 MiB instead of 4 KiB, if the kernel grants them.
    auto* aligned = reinterpret_cast<char*>(round_up(reinterpret_cast<size_t>(memory), kHugePage));
    if (aligned != memory) {
      ::munmap(memory, aligned - memory);
    }
    size_t rest = (memory + span) - (aligned + size);
    if (rest != 0) {
      ::munmap(aligned + size, rest);
    }
    ::madvise(aligned, size, MADV_HUGEPAGE);
    memory = aligned;
  }
  auto* block = new (memory) Block{};
  block->capacity = capacity;
  block->mapped = true;
  return block;
}

void give_back(Block* block) {
  if (block->mapped) {
    ::munmap(block, block->footprint());
  } else {
    ::free(block);
  }
}

struct OutOfHostMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

thread_local uint8_t current_phase = 0;
thread_local Buffer* current_buffer = nullptr;

} // namespace

extern "C" struct KdgatHostStats {
  uint64_t current, peak;                // bytes as requested
  uint64_t in_use, kept, peak_reserved;  // bytes as taken from the system, headers included
  uint64_t limit, allocations, reused, failures;
  uint64_t phases[kPhases], phases_at_peak[kPhases], phase_peaks[kPhases];
};

namespace {

void deallocate(void* data);

class HostAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : take(bytes);
    return {data, data, &deallocate, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &deallocate;
  }

  void copy_data(void* target, const void* source, size_t count) const override {
    default_copy_data(target, source, count);
  }

  void put(Block* block) {
    if (block->buffer != nullptr) {
      return leave_buffer(block->buffer, [](Buffer& buffer) { --buffer.live; });
    }
    std::vector<Block*> released;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      uncount(block);
      if (block->capacity < kCached) {
        released.push_back(block);
      } else {
        block->age = ++clock_;
        kept_by_size_.emplace(std::make_pair(block->capacity, ~block->age), block);
        kept_by_age_.emplace(block->age, block);
        stats_.kept += block->footprint();
        // At most a quarter more than the largest step needed: batches differ in size, and the kernel must clear
        // returned memory page by page when the next step asks for it. Small steps may cache up to `kAlwaysKept`: a
        // short last batch has blocks of other sizes.
        size_t ceiling = std::max(high_water_ + high_water_ / 4, kAlwaysKept);
        size_t allowed = std::min(keep_limit_, ceiling - std::min<size_t>(ceiling, stats_.in_use));
        release_oldest(allowed, released);
      }
    }
    for (Block* block : released) {
      give_back(block);
    }
  }

  void release_kept() {
    std::vector<Block*> released;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      high_water_ = stats_.in_use;
      release_oldest(0, released);
    }
    for (Block* block : released) {
      give_back(block);
    }
  }

  // Counts memory that this allocator did not give like a block of it, within the limit.
  void count_outside(size_t bytes, uint8_t phase) {
    std::vector<Block*> released;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (bytes > stats_.limit - std::min<uint64_t>(stats_.limit, stats_.in_use)) {
        refuse(bytes, "it would be exceeded");
      }
      release_oldest(stats_.limit - stats_.in_use - bytes, released);
      add(bytes, bytes, phase);
    }
    for (Block* block : released) {
      give_back(block);
    }
  }

  void uncount_outside(size_t bytes, uint8_t phase) {
    std::lock_guard<std::mutex> lock(mutex_);
    subtract(bytes, bytes, phase);
  }

  KdgatHostStats stats() {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }

  void reset_peak() {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.peak = stats_.current;
    stats_.peak_reserved = stats_.in_use + stats_.kept;
    std::copy(std::begin(stats_.phases), std::end(stats_.phases), stats_.phases_at_peak);
    std::copy(std::begin(stats_.phases), std::end(stats_.phases), stats_.phase_peaks);
  }

  void set_limits(size_t limit, size_t keep_limit) {
    std::vector<Block*> released;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stats_.limit = limit;
      keep_limit_ = keep_limit;
      size_t room = limit - std::min<size_t>(limit, stats_.in_use);
      release_oldest(std::min(keep_limit, room), released);
    }
    for (Block* block : released) {
      give_back(block);
    }
  }

  void inject(uint64_t countdown, uint64_t seed, uint64_t threshold) {
    std::lock_guard<std::mutex> lock(mutex_);
    fail_after_ = countdown;
    fail_seed_ = seed;
    fail_threshold_ = threshold;
    fail_counter_ = 0;
  }

  // Allocates `count` buffers, which are counted in full from now on.
  BufferPool* new_pool(size_t count, size_t bytes) {
    auto pool = std::make_unique<BufferPool>();
    try {
      for (size_t number = 0; number < count; ++number) {
        auto buffer = std::make_unique<Buffer>();
        buffer->pool = pool.get();
        buffer->bytes = bytes;
        buffer->begin = static_cast<char*>(take(bytes));
        pool->free.push_back(buffer.get());
        pool->buffers.push_back(std::move(buffer));
      }
    } catch (...) {
      release(std::move(pool));
      throw;
    }
    return pool.release();
  }

  // Gives the buffer that was released first to this thread; false if none is free or the thread has one.
  bool enter_buffer(BufferPool* pool) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (current_buffer != nullptr || pool->free.empty()) {
      return false;
    }
    current_buffer = pool->free.front();
    pool->free.pop_front();
    current_buffer->is_open = true;
    return true;
  }

  void close_buffer() {
    if (Buffer* buffer = std::exchange(current_buffer, nullptr)) {
      leave_buffer(buffer, [](Buffer& buffer) { buffer.is_open = false; });
    }
  }

  // Releases the pool now, or with its last tensor.
  void drop_pool(BufferPool* pool) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      pool->is_dropped = true;
      if (pool->free.size() != pool->buffers.size()) {
        return;
      }
    }
    release(std::unique_ptr<BufferPool>(pool));
  }

  void attribute(Block* block, uint8_t phase) {
    if (block->buffer != nullptr) {
      return;  // The buffer is counted as a whole.
    }
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.phases[block->phase] -= block->requested;
    stats_.phases[phase] += block->requested;
    stats_.phase_peaks[phase] = std::max(stats_.phase_peaks[phase], stats_.phases[phase]);
    block->phase = phase;
  }

 private:
  void* take(size_t bytes) {
    size_t capacity = capacity_for(bytes);
    std::vector<Block*> released;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (injected()) {
        refuse(bytes, "a failure injected by a test");
      }
      if (Block* block = place_in_buffer(bytes)) {
        return block->data();
      }
      if (Block* block = reuse(capacity)) {
        count(block, bytes);
        return block->data();
      }
      size_t footprint = sizeof(Block) + capacity;
      if (stats_.in_use + footprint > stats_.limit) {
        refuse(bytes, "it would be exceeded");
      }
      release_oldest(stats_.limit - stats_.in_use - footprint, released);
      // Reserved before unlocking, so that threads cannot exceed the limit together.
      stats_.in_use += footprint;
      stats_.peak_reserved = std::max(stats_.peak_reserved, stats_.in_use + stats_.kept);
      high_water_ = std::max<size_t>(high_water_, stats_.in_use);
    }
    for (Block* block : released) {
      give_back(block);
    }
    Block* block = obtain(capacity);
    if (block == nullptr) {
      release_kept();
      block = obtain(capacity);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.in_use -= sizeof(Block) + capacity;
    if (block == nullptr) {
      refuse(bytes, "the system has no more");
    }
    count(block, bytes);
    return block->data();
  }

  // A block of this thread's buffer; null without a buffer, or if the rest of it is too small.
  Block* place_in_buffer(size_t bytes) {
    Buffer* buffer = current_buffer;
    size_t capacity = round_up(bytes, kAlignment);
    if (buffer == nullptr || sizeof(Block) + capacity > buffer->bytes - buffer->used) {
      return nullptr;
    }
    auto* block = new (buffer->begin + buffer->used) Block{};
    block->requested = bytes;
    block->capacity = capacity;
    block->buffer = buffer;
    buffer->used += block->footprint();
    ++buffer->live;
    ++stats_.allocations;
    ++stats_.reused;
    return block;
  }

  // Applies `change` to a buffer, which then returns to its pool if it is closed and empty.
  template <typename Change>
  void leave_buffer(Buffer* buffer, Change&& change) {
    BufferPool* pool = buffer->pool;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      change(*buffer);
      if (buffer->live != 0 || buffer->is_open) {
        return;
      }
      buffer->used = 0;
      pool->free.push_back(buffer);
      if (!pool->is_dropped || pool->free.size() != pool->buffers.size()) {
        return;
      }
    }
    release(std::unique_ptr<BufferPool>(pool));
  }

  void release(std::unique_ptr<BufferPool> pool) {
    for (const auto& buffer : pool->buffers) {
      put(Block::of(buffer->begin));
    }
  }

  // The smallest cached block that is large enough but at most a quarter larger; among equals, the one freed last.
  Block* reuse(size_t capacity) {
    if (capacity < kCached) {
      return nullptr;
    }
    auto found = kept_by_size_.lower_bound({capacity, 0});
    if (found == kept_by_size_.end() || found->first.first > capacity + capacity / 4) {
      return nullptr;
    }
    Block* block = found->second;
    kept_by_size_.erase(found);
    kept_by_age_.erase(block->age);
    stats_.kept -= block->footprint();
    ++stats_.reused;
    return block;
  }

  void release_oldest(size_t allowed, std::vector<Block*>& released) {
    while (stats_.kept > allowed && !kept_by_age_.empty()) {
      Block* block = kept_by_age_.begin()->second;
      kept_by_age_.erase(kept_by_age_.begin());
      kept_by_size_.erase({block->capacity, ~block->age});
      stats_.kept -= block->footprint();
      released.push_back(block);
    }
  }

  void count(Block* block, size_t bytes) {
    block->requested = bytes;
    block->phase = current_phase;
    ++stats_.allocations;
    add(block->footprint(), bytes, block->phase);
  }

  void uncount(Block* block) {
    subtract(block->footprint(), block->requested, block->phase);
  }

  // Adds memory that takes `footprint` bytes of the system, of which `bytes` were asked for.
  void add(size_t footprint, size_t bytes, uint8_t phase) {
    stats_.in_use += footprint;
    high_water_ = std::max<size_t>(high_water_, stats_.in_use);
    stats_.peak_reserved = std::max(stats_.peak_reserved, stats_.in_use + stats_.kept);
    stats_.current += bytes;
    stats_.phases[phase] += bytes;
    stats_.phase_peaks[phase] = std::max(stats_.phase_peaks[phase], stats_.phases[phase]);
    if (stats_.current > stats_.peak) {
      stats_.peak = stats_.current;
      std::copy(std::begin(stats_.phases), std::end(stats_.phases), stats_.phases_at_peak);
    }
  }

  void subtract(size_t footprint, size_t bytes, uint8_t phase) {
    stats_.in_use -= footprint;
    stats_.current -= bytes;
    stats_.phases[phase] -= bytes;
  }

  bool injected() {
    if (fail_after_ != 0 && --fail_after_ == 0) {
      return true;
    }
    if (fail_threshold_ == 0) {
      return false;
    }
    // SplitMix64 of seed and counter.
    uint64_t word = fail_seed_ + 0x9E3779B97F4A7C15ull * ++fail_counter_;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBull;
    return (word ^ (word >> 31)) < fail_threshold_;
  }

  [[noreturn]] void refuse(size_t bytes, const char* reason) {
    ++stats_.failures;
    std::ostringstream text;
    text << "kdgat: host memory limit";
    if (stats_.limit != SIZE_MAX) {
      text << " of " << stats_.limit << " bytes";
    }
    text << ": " << reason << ": " << bytes << " bytes requested, " << stats_.in_use << " in use";
    throw OutOfHostMemory(text.str());
  }

  std::mutex mutex_;
  KdgatHostStats stats_ = [] {
    KdgatHostStats stats{};
    stats.limit = SIZE_MAX;
    return stats;
  }();
  std::map<std::pair<size_t, uint64_t>, Block*> kept_by_size_;
  std::map<uint64_t, Block*> kept_by_age_;
  uint64_t clock_ = 0;
  size_t keep_limit_ = SIZE_MAX;
  size_t high_water_ = 0;
  uint64_t fail_after_ = 0, fail_seed_ = 0, fail_threshold_ = 0, fail_counter_ = 0;
};

// Never destroyed: tensors may be freed while the process exits.
HostAllocator& allocator() {
  static auto* instance = new HostAllocator;
  return *instance;
}

void deallocate(void* data) {
  if (data != nullptr) {
    allocator().put(Block::of(data));
  }
}

} // namespace

extern "C" {

char* kdgat_allocator_install() {
  return kdgat::guarded([] {
    c10::SetCPUAllocator(&allocator());
    TORCH_CHECK(c10::GetCPUAllocator() == &allocator(), "another host allocator with higher priority is already installed");
  });
}

bool kdgat_allocator_installed() {
  return c10::GetCPUAllocator() == &allocator();
}

void kdgat_allocator_stats(KdgatHostStats* stats) {
  *stats = allocator().stats();
}

void kdgat_allocator_reset_peak() {
  allocator().reset_peak();
}

void kdgat_allocator_set_limits(size_t limit, size_t keep_limit) {
  allocator().set_limits(limit, keep_limit);
}

void kdgat_allocator_release_kept() {
  allocator().release_kept();
}

char* kdgat_allocator_count_outside(size_t bytes, uint8_t phase) {
  return kdgat::guarded([&] { allocator().count_outside(bytes, std::min<uint8_t>(phase, kPhases - 1)); });
}

void kdgat_allocator_uncount_outside(size_t bytes, uint8_t phase) {
  allocator().uncount_outside(bytes, std::min<uint8_t>(phase, kPhases - 1));
}

void kdgat_allocator_inject(uint64_t countdown, uint64_t seed, uint64_t threshold) {
  allocator().inject(countdown, seed, threshold);
}

char* kdgat_buffers_new(size_t count, size_t bytes, void** pool) {
  return kdgat::guarded([&] { *pool = allocator().new_pool(count, bytes); });
}

bool kdgat_buffers_enter(void* pool) {
  return allocator().enter_buffer(static_cast<BufferPool*>(pool));
}

void kdgat_buffers_leave() {
  allocator().close_buffer();
}

void kdgat_buffers_drop(void* pool) {
  allocator().drop_pool(static_cast<BufferPool*>(pool));
}

uint8_t kdgat_allocator_set_phase(uint8_t phase) {
  return std::exchange(current_phase, std::min<uint8_t>(phase, kPhases - 1));
}

// True if `pointer` with this deleter was allocated here; its bytes are then counted under `phase` from now on.
bool kdgat_allocator_attribute(void* pointer, void (*deleter)(void*), uint8_t phase) {
  if (deleter != &deallocate || pointer == nullptr) {
    return false;
  }
  allocator().attribute(Block::of(pointer), std::min<uint8_t>(phase, kPhases - 1));
  return true;
}
}
