// Memory of the cards. Tensors have protected addresses: a host that reads or writes there gets SIGSEGV. Jobs access
// the same bytes through a second mapping.
//
// Like CUDA's allocator, this one caches freed blocks for the stream that they were allocated on, and reuses them at once. If the
// card is full, it fails with CUDA's error text. It does not split blocks.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>
#include <sys/mman.h>

#include <cstring>
#include <tuple>

#include "streams.h"

namespace card {

constexpr size_t kRounding = 512;
// Size of the address range of each card, many times its memory.
constexpr size_t kAddresses = size_t{1} << 36;

// An access to memory by the job with this number.
struct Access {
  int stream = -1;
  uint64_t job = 0;
  std::string what;
};

struct Block {
  char* address = nullptr;
  size_t size = 0, requested = 0;
  int card = 0;
  // The stream whose pool owns the block.
  int home = 0;
  // The CUDA graphs whose memory it is, or 0.
  uint64_t pool = 0;
  // Number of the allocation, or 0 for a freed block.
  uint64_t number = 0;
  Access write;
  std::vector<Access> reads;
  // Streams reported to the allocator by record_stream.
  std::vector<int> recorded;
};

struct CardMemory {
  char* untouchable = nullptr;
  char* usable = nullptr;
  // Free address ranges, by start.
  std::map<char*, size_t> holes;
  // Freed blocks, by pool of CUDA graphs, home stream and size.
  std::map<std::tuple<uint64_t, int, size_t>, std::vector<Block*>> kept;
  // Freed blocks that other streams may still use.
  std::vector<std::pair<Block*, Clock>> deferred;
  c10::CachingDeviceAllocator::DeviceStats stats;
  double fraction = 1.0;
};

struct Memory {
  std::array<CardMemory, kMaxCards> cards;
  // All blocks, in use or freed, by address.
  std::map<char*, Block*> blocks;
  uint64_t allocations = 0;

  Memory() {
    for (int index = 0; index < settings().cards; ++index) {
      auto& card = cards[index];
      const auto map = [](int access) {
        void* start = ::mmap(nullptr, kAddresses, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start == MAP_FAILED) {
          refuse("the address space has no room for a card");
        }
        return static_cast<char*>(start);
      };
      card.untouchable = map(PROT_NONE);
      card.usable = map(PROT_READ | PROT_WRITE);
      // Excluded from core dumps.
      ::madvise(card.untouchable, kAddresses, MADV_DONTDUMP);
      card.holes[card.untouchable] = kAddresses;
    }
  }
};

inline Memory& memory() {
  static Memory* memory = new Memory;
  return *memory;
}

// Address at which jobs access the tensor address `address`.
inline void* usable(int card, const void* address) {
  auto& memory_of = memory().cards[card];
  return memory_of.usable + (static_cast<const char*>(address) - memory_of.untouchable);
}

inline c10::CachingAllocator::Stat& of(c10::CachingAllocator::StatArray& stats) {
  return stats[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

inline size_t limit_of(int card) {
  return static_cast<size_t>(memory().cards[card].fraction * static_cast<double>(settings().memory));
}

// ---- order

inline bool comes_before(const Access& access, const Clock& clock) {
  return access.stream < 0 || clock[access.stream] >= access.job;
}

inline std::string name_of(int stream) {
  const int own = stream % kStreams;
  const std::string on = " of card " + std::to_string(stream / kStreams);
  return own == 0 ? "the default stream" + on : "side stream " + std::to_string(own) + on;
}

// Records an ordering fault, if the check is on.
inline void note_disorder(const std::string& text) {
  if (settings().check) {
    note_fault(text);
  }
}

inline void unordered(const std::string& what, int stream, const char* does, const Access& other) {
  note_disorder(what + " on " + name_of(stream) + does + other.what + " on " + name_of(other.stream) + ", which it does not wait for");
}

// Records that job number `job` of `stream`, the next one, reads or writes `block`.
inline void use(Block& block, int stream, uint64_t job, bool writes, const std::string& what) {
  if (is_recorded(stream)) {
    state().recording.uses.push_back({block.address, block.number, writes, what});
    return;
  }
  const Clock& clock = state().streams[stream].clock;
  const auto earlier = [&](const Access& access) { return access.stream == stream || comes_before(access, clock); };
  if (!earlier(block.write)) {
    unordered(what, stream, writes ? " writes memory that was written by " : " reads what is written by ", block.write);
  }
  if (!writes) {
    for (auto& read : block.reads) {
      if (read.stream == stream) {
        read = {stream, job, what};
        return;
      }
    }
    block.reads.push_back({stream, job, what});
    return;
  }
  for (const auto& read : block.reads) {
    if (!earlier(read)) {
      unordered(what, stream, " overwrites what is read by ", read);
    }
  }
  block.reads.clear();
  block.write = {stream, job, what};
}

// ---- the allocator

inline char* take_addresses(CardMemory& card, size_t size) {
  for (auto hole = card.holes.begin(); hole != card.holes.end(); ++hole) {
    if (hole->second >= size) {
      char* address = hole->first;
      const size_t rest = hole->second - size;
      card.holes.erase(hole);
      if (rest > 0) {
        card.holes[address + size] = rest;
      }
      return address;
    }
  }
  refuse("a card ran out of addresses");
}

inline void return_addresses(CardMemory& card, char* address, size_t size) {
  // Whole pages only, because the outer pages are shared with other blocks.
  constexpr uintptr_t kPage = 4096;
  const auto start = reinterpret_cast<uintptr_t>(card.usable + (address - card.untouchable));
  const uintptr_t first = (start + kPage - 1) / kPage * kPage, end = (start + size) / kPage * kPage;
  if (first < end) {
    ::madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
  }
  auto next = card.holes.lower_bound(address);
  if (next != card.holes.end() && address + size == next->first) {
    size += next->second;
    next = card.holes.erase(next);
  }
  if (next != card.holes.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == address) {
      before->second += size;
      return;
    }
  }
  card.holes[address] = size;
}

// Waits on the host for all work of a card.
inline void synchronize_card(int card) {
  for (int stream = card * kStreams; stream < (card + 1) * kStreams; ++stream) {
    wait_on_host(stream);
  }
}

inline void keep(CardMemory& card, Block* block) {
  block->reads.clear();
  block->recorded.clear();
  block->number = 0;
  card.kept[{block->pool, block->home, block->size}].push_back(block);
}

inline void end_deferred(CardMemory& card) {
  auto done = [&](const std::pair<Block*, Clock>& entry) {
    for (int stream = 0; stream < kAllStreams; ++stream) {
      if (state().streams[stream].done < entry.second[stream]) {
        return false;
      }
    }
    keep(card, entry.first);
    return true;
  };
  card.deferred.erase(std::remove_if(card.deferred.begin(), card.deferred.end(), done), card.deferred.end());
}

// Frees all cached blocks after all work of the card, as cudaFree does. Those of CUDA graphs stay.
inline void release_kept(int index) {
  auto& card = memory().cards[index];
  synchronize_card(index);
  end_deferred(card);
  for (auto& [key, blocks] : card.kept) {
    if (std::get<0>(key) != 0) {
      continue;
    }
    for (Block* block : blocks) {
      return_addresses(card, block->address, block->size);
      of(card.stats.reserved_bytes).decrease(block->size);
      memory().blocks.erase(block->address);
      delete block;
    }
    blocks.clear();
  }
}

inline std::string mebibytes(size_t bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

[[noreturn]] inline void out_of_memory(int index, size_t bytes) {
  auto& stats = memory().cards[index].stats;
  ++stats.num_ooms;
  const size_t taken = static_cast<size_t>(of(stats.reserved_bytes).current);
  const size_t allocated = static_cast<size_t>(of(stats.allocated_bytes).current);
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", mebibytes(bytes), ". GPU ", index,
      " has a total capacity of ", mebibytes(settings().memory), " of which ", mebibytes(settings().memory - taken),
      " is free. Including non-PyTorch memory, this process has ", mebibytes(taken), " memory in use. ", mebibytes(limit_of(index)),
      " allowed; Of the allocated memory ", mebibytes(allocated), " is allocated by PyTorch, and ", mebibytes(taken - allocated),
      " is reserved by PyTorch but unallocated.");
  ::abort();
}

inline void deallocate(void* context);

inline Block* allocate_block(int index, size_t bytes) {
  Lock lock(state().lock);
  open_context(index);
  check_fault();
  auto& card = memory().cards[index];
  const size_t size = (bytes + kRounding - 1) / kRounding * kRounding;
  const int home = current_stream(index);
  const bool recorded = is_recorded(home);
  const uint64_t pool = recorded ? state().recording.pool : 0;
  const bool is_upload = home % kStreams != 0 && !recorded;
  const bool upload_fails = is_upload && fails("upload");
  if (fails("allocate") || upload_fails) {
    out_of_memory(index, size);
  }
  end_deferred(card);
  Block* block = nullptr;
  auto& fitting = card.kept[{pool, home, size}];
  if (!fitting.empty()) {
    block = fitting.back();
    fitting.pop_back();
  } else {
    const auto has_room = [&] { return of(card.stats.reserved_bytes).current + size <= limit_of(index); };
    if (!has_room()) {
      // Nothing can be given back while a stream is being recorded, because that waits for the card.
      if (state().recording.stream < 0) {
        ++card.stats.num_alloc_retries;
        release_kept(index);
      }
      if (!has_room()) {
        state().counts.refused_uploads += is_upload;
        out_of_memory(index, size);
      }
    }
    block = new Block;
    block->address = take_addresses(card, size);
    block->size = size;
    block->card = index;
    block->home = home;
    block->pool = pool;
    memory().blocks[block->address] = block;
    of(card.stats.reserved_bytes).increase(size);
  }
  block->requested = bytes;
  block->number = ++memory().allocations;
  of(card.stats.allocated_bytes).increase(size);
  of(card.stats.active_bytes).increase(size);
  of(card.stats.requested_bytes).increase(bytes);
  of(card.stats.allocation).increase(1);
  // Nothing has run there yet if the stream is being recorded.
  block->write = recorded ? Access{} : Access{home, state().streams[home].queued, "earlier work with the same memory"};
  if (settings().poison) {
    block->write.job = recorded ? 0 : next_job(home);
    void* start = usable(index, block->address);
    push(home, {[start, size] { std::memset(start, 0xFF, size); }}, 0);
  }
  return block;
}

inline void deallocate(void* context) {
  Lock lock(state().lock);
  auto* block = static_cast<Block*>(context);
  auto& card = memory().cards[block->card];
  of(card.stats.allocated_bytes).decrease(block->size);
  of(card.stats.active_bytes).decrease(block->size);
  of(card.stats.requested_bytes).decrease(block->requested);
  of(card.stats.allocation).decrease(1);
  Clock clock = state().streams[block->home].clock;
  join(clock, state().host);
  Clock until{};
  const auto check = [&](const Access& access) {
    if (access.stream < 0 || access.stream == block->home || comes_before(access, clock)) {
      return;
    }
    if (std::find(block->recorded.begin(), block->recorded.end(), access.stream) == block->recorded.end()) {
      note_disorder(
          "memory goes back to the pool of " + name_of(block->home) + " while it is used by " + access.what + " on " +
          name_of(access.stream) + ", which neither the first waits for nor record_stream told of");
    }
  };
  check(block->write);
  std::for_each(block->reads.begin(), block->reads.end(), check);
  for (const int stream : block->recorded) {
    until[stream] = state().streams[stream].queued;
  }
  if (block->recorded.empty()) {
    keep(card, block);
  } else {
    card.deferred.push_back({block, until});
  }
}

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    const int index = current().card;
    const c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
    if (bytes == 0) {
      return {nullptr, nullptr, &deallocate_any, device};
    }
    Block* block = allocate_block(index, bytes);
    return {block->address, block, &deallocate_any, device};
  }
  static void deallocate_any(void* context) {
    if (context != nullptr) {
      deallocate(context);
    }
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "software card: copy_data is not modelled");
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t) override {
    Lock lock(state().lock);
    // It waits for the current card.
    open_context(current().card);
    for (int index = 0; index < settings().cards && state().recording.stream < 0; ++index) {
      release_kept(index);
    }
  }
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    Lock lock(state().lock);
    const int index = stream.device_index() * kStreams + static_cast<int>(stream.id());
    auto* block = pointer.get_deleter() == &deallocate_any ? static_cast<Block*>(pointer.get_context()) : nullptr;
    if (block != nullptr && index != block->home && !settings().leaves_out_recorded_streams) {
      block->recorded.push_back(index);
    }
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    Lock lock(state().lock);
    return memory().cards[index].stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex index) override {
    Lock lock(state().lock);
    auto& stats = memory().cards[index].stats;
    for (auto* each : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes, &stats.allocation}) {
      of(*each).reset_peak();
    }
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    Lock lock(state().lock);
    open_context(index);
    const auto reserved = static_cast<size_t>(of(memory().cards[index].stats.reserved_bytes).current);
    return {settings().memory - reserved, settings().memory};
  }
};

inline Allocator& allocator() {
  static Allocator* allocator = new Allocator;
  return *allocator;
}

// Settings that only a CUDA build of libtorch knows; only the share of the memory is applied.
inline void read_allocator_settings(const std::string& text) {
  for (const auto& entry : split(text, ',')) {
    const size_t colon = entry.find(':');
    if (colon != std::string::npos && entry.substr(0, colon) == "per_process_memory_fraction") {
      for (auto& card : memory().cards) {
        card.fraction = std::strtod(entry.c_str() + colon + 1, nullptr);
      }
    }
  }
}

} // namespace card
