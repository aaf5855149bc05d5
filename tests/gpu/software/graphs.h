// CUDA graphs: the jobs of a stream, kept while it is being recorded, and run as one job of each replay.
//
// Every replay reads and writes the memory of the recording, in the order that the streams have then. A replay that uses freed
// memory is a fault, and so is a graph that is destroyed before the host has waited for its last replay.
#pragma once

#include "memory.h"
#include "runtime.h"

namespace card {

// Number of CUDA graphs by pool.
inline std::map<uint64_t, int>& graphs_of_pools() {
  static auto* graphs = new std::map<uint64_t, int>;
  return *graphs;
}

struct Graph {
  Recording recorded;
  Access last_replay;
};

inline void begin_recording(Graph& graph, uint64_t pool) {
  Lock lock(state().lock);
  check_call("launch");
  const int stream = current_stream(current().card);
  TORCH_CHECK(stream % kStreams != 0, "CUDA error: the default stream cannot be recorded");
  TORCH_CHECK(state().recording.stream < 0 && graph.recorded.pool == 0, "CUDA error: a stream is being recorded already");
  state().recording = Recording{stream, pool};
  graph.recorded.pool = pool;
  ++graphs_of_pools()[pool];
}

inline void end_recording(Graph& graph) {
  Lock lock(state().lock);
  check_fault();
  const bool is_broken = state().recording.is_broken;
  const uint64_t pool = graph.recorded.pool;
  graph.recorded = std::exchange(state().recording, Recording{});
  graph.recorded.pool = pool;
  TORCH_CHECK(!is_broken, "CUDA error: operation failed due to a previous error during capture");
  ++state().counts.recordings;
}

inline void use_again(const Use& use, uint64_t pool, int stream, uint64_t job) {
  const auto found = memory().blocks.find(use.address);
  const bool is_there = found != memory().blocks.end() && (found->second->pool == pool || found->second->number == use.number);
  if (!is_there) {
    note_fault("a CUDA graph uses freed memory in " + use.what);
    return;
  }
  card::use(*found->second, stream, job, use.writes, use.what + " of a CUDA graph");
}

inline void replay(Graph& graph) {
  Lock lock(state().lock);
  check_call("launch");
  check_last_error("a CUDA graph");
  const int stream = current_stream(current().card);
  const uint64_t job = next_job(stream);
  for (const auto& use : graph.recorded.uses) {
    use_again(use, graph.recorded.pool, stream, job);
  }
  check_fault();
  // Copied, because a job may use up its arguments.
  auto run = [jobs = graph.recorded.jobs] {
    for (auto each : jobs) {
      if (each) {
        each();
      }
    }
  };
  push(stream, {std::move(run)}, graph.recorded.milliseconds);
  graph.last_replay = {stream, job, "a replay"};
  ++state().counts.replays;
  if (graph.recorded.draws_numbers) {
    force(stream, job);
  }
}

// Gives the memory of a pool without graphs to the allocator.
inline void free_pool(uint64_t pool) {
  for (auto& [address, block] : memory().blocks) {
    block->pool = block->pool == pool ? 0 : block->pool;
  }
  for (auto& card : memory().cards) {
    for (auto entry = card.kept.begin(); entry != card.kept.end();) {
      const auto [owner, home, size] = entry->first;
      if (owner != pool) {
        ++entry;
        continue;
      }
      auto freed = std::move(entry->second);
      entry = card.kept.erase(entry);
      auto& blocks = card.kept[{0, home, size}];
      blocks.insert(blocks.end(), freed.begin(), freed.end());
    }
  }
}

inline void destroy(Graph* graph) {
  Lock lock(state().lock);
  const auto& last = graph->last_replay;
  if (!comes_before(last, state().host)) {
    note_fault("a CUDA graph is destroyed while " + last.what + " on " + name_of(last.stream) +
               " may still run: the host has not waited for it");
    force(last.stream, last.job);
  }
  const uint64_t pool = graph->recorded.pool;
  if (pool != 0 && --graphs_of_pools()[pool] == 0) {
    free_pool(pool);
  }
  delete graph;
}

// The graph of an object of at::cuda::CUDAGraph, whose memory belongs to the caller.
inline Graph*& graph_in(void* object) {
  return *static_cast<Graph**>(object);
}

} // namespace card

namespace at::cuda {

__attribute__((visibility("default"))) std::pair<unsigned long long, unsigned long long> graph_pool_handle() {
  static std::atomic<unsigned long long> pools{0};
  return {0, ++pools};
}

} // namespace at::cuda

// Constructor, destructor and member functions of at::cuda::CUDAGraph, which the program finds by mangled name.
extern "C" {
void card_graph_new(void*, bool) __asm__("_ZN2at4cuda9CUDAGraphC1Eb");
void card_graph_delete(void*) __asm__("_ZN2at4cuda9CUDAGraphD1Ev");
void card_graph_begin(void*, std::pair<unsigned long long, unsigned long long>, int) __asm__(
    "_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode");
void card_graph_end(void*) __asm__("_ZN2at4cuda9CUDAGraph11capture_endEv");
void card_graph_replay(void*) __asm__("_ZN2at4cuda9CUDAGraph6replayEv");

void card_graph_new(void* object, bool) {
  card::graph_in(object) = new card::Graph;
}
void card_graph_delete(void* object) {
  card::destroy(card::graph_in(object));
}
void card_graph_begin(void* object, std::pair<unsigned long long, unsigned long long> pool, int) {
  card::begin_recording(*card::graph_in(object), pool.second);
}
void card_graph_end(void* object) {
  card::end_recording(*card::graph_in(object));
}
void card_graph_replay(void* object) {
  card::replay(*card::graph_in(object));
}
}
