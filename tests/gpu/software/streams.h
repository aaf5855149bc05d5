// Streams as queues of jobs, run by any host thread that has to wait for them. Vector clocks record the required order,
// so that a missing wait is found even if the jobs happened to run in a harmless order.
//
// Without a seed, each job runs when it is queued, unless an earlier job sleeps or waits for a job that has not run. With a seed,
// jobs run late: at each call a few run, on randomly drawn streams, and the others only when the host waits. No job depends on the
// time of day or on the machine's load.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "settings.h"

namespace card {

constexpr int kAllStreams = kMaxCards * kStreams;
// Number of jobs of each stream that are done, or that come before the next queued job.
using Clock = std::array<uint64_t, kAllStreams>;

inline void join(Clock& clock, const Clock& other) {
  for (int stream = 0; stream < kAllStreams; ++stream) {
    clock[stream] = std::max(clock[stream], other[stream]);
  }
}

struct Job {
  std::function<void()> run;
  // For a job that only waits: it waits for this stream's first `until` jobs.
  int awaited = -1;
  uint64_t until = 0;
  // For a long job: later jobs run only when the host waits.
  bool sleeps = false;
};

// A read or write of the memory that was allocated at this address with this number.
struct Use {
  char* address = nullptr;
  uint64_t number = 0;
  bool writes = false;
  std::string what;
};

// Work that a CUDA graph recorded: its jobs run one after the other, as one job of a replay.
struct Recording {
  // The stream that is being recorded, or -1.
  int stream = -1;
  // The pool that its memory comes from.
  uint64_t pool = 0;
  std::vector<std::function<void()>> jobs;
  std::vector<Use> uses;
  double milliseconds = 0;
  bool draws_numbers = false, is_broken = false;
};

struct Stream {
  std::deque<Job> jobs;
  uint64_t queued = 0, done = 0;
  Clock clock{};
  // Simulated time in milliseconds at which the queued work ends.
  double free_at = 0;
  // With a seed: number of jobs that may be pending before the oldest must run.
  size_t lag = 0;
};

// Number of calls by kind so far, and other counts for the report.
struct Counts {
  std::map<std::string, uint64_t> calls;
  uint64_t injected = 0, blocking_copies = 0, queued_copies = 0, copied_to_cards = 0, copied_to_hosts = 0, late_operators = 0,
           kernels = 0, slow_operators = 0, recordings = 0, replays = 0, refused_uploads = 0, beside_current_card = 0;
};

struct State {
  // One lock for all cards: jobs run under it, and they may free memory of a card.
  std::recursive_mutex lock;
  std::array<Stream, kAllStreams> streams;
  // Jobs that the host has waited for.
  Clock host{};
  Recording recording;
  std::mt19937_64 random{settings().seed};
  Counts counts;
  // The first fault. It is sticky, like an error of a real card: every later call fails with it.
  std::string fault;
  uint64_t contexts = 0;

  State() {
    for (auto& stream : streams) {
      stream.lag = settings().seed == 0 ? 0 : random() % 40;
    }
  }
};

inline State& state() {
  static State* state = new State;
  return *state;
}

using Lock = std::lock_guard<std::recursive_mutex>;

inline double now_ms() {
  static const auto start = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// Simulated duration of work on this card, in milliseconds.
inline double duration_ms(size_t bytes, bool over_the_bus) {
  return 0.005 + static_cast<double>(bytes) / (over_the_bus ? 1e7 : 1e9);
}

// Simulated duration of an operator.
inline double operator_ms(const std::string& name) {
  const bool is_slow = name == settings().slow_operator;
  state().counts.slow_operators += is_slow;
  return duration_ms(0, false) + (is_slow ? settings().slow_ms : 0);
}

// Makes the host wait until the card's work ends, if an operator is slow.
inline void spend_until(double milliseconds) {
  if (settings().slow_ms > 0 && milliseconds > now_ms()) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds - now_ms()));
  }
}

inline bool is_recorded(int stream) {
  return stream == state().recording.stream;
}

inline void note_fault(const std::string& text) {
  auto& fault = state().fault;
  if (fault.empty()) {
    fault = text;
    std::fprintf(stderr, "software card: fault: %s\n", text.c_str());
  }
}

inline void check_fault() {
  TORCH_CHECK(state().fault.empty(), "CUDA error: software card: ", state().fault);
}

// Counts the call; returns true if it must fail.
inline bool fails(const char* kind) {
  const uint64_t call = ++state().counts.calls[kind];
  const auto found = settings().failures.find(kind);
  if (found == settings().failures.end()) {
    return false;
  }
  for (const auto& range : found->second) {
    if (range.first <= call && call <= range.last) {
      ++state().counts.injected;
      std::fprintf(stderr, "software card: injected: %s call %llu fails\n", kind, static_cast<unsigned long long>(call));
      return true;
    }
  }
  return false;
}

inline void check_call(const char* kind) {
  check_fault();
  TORCH_CHECK(!fails(kind), "CUDA error: unspecified launch failure (injected into ", kind, " call ", state().counts.calls[kind], ")");
}

// Fails if the stream is being recorded: the host cannot wait for work that does not run.
inline void check_not_recorded(int stream, const std::string& what) {
  if (is_recorded(stream)) {
    state().recording.is_broken = true;
    std::fprintf(stderr, "software card: %s cannot be recorded\n", what.c_str());
    TORCH_CHECK(false, "CUDA error: operation not permitted when stream is capturing (", what, ")");
  }
}

inline void run_next(Stream& stream);

// Runs the first `until` jobs of a stream, after the jobs that they wait for.
inline void force(int index, uint64_t until) {
  auto& stream = state().streams[index];
  while (stream.done < until) {
    const auto& next = stream.jobs.front();
    if (next.awaited >= 0) {
      force(next.awaited, next.until);
    }
    run_next(stream);
  }
}

inline void run_next(Stream& stream) {
  Job job = std::move(stream.jobs.front());
  stream.jobs.pop_front();
  if (job.run) {
    try {
      job.run();
    } catch (const std::exception& error) {
      note_fault(std::string("an operator failed: ") + error.what());
    }
  }
  ++stream.done;
}

inline bool can_run(const Job& job) {
  return !job.sleeps && (job.awaited < 0 || state().streams[job.awaited].done >= job.until);
}

inline void run_what_can(Stream& stream) {
  while (!stream.jobs.empty() && can_run(stream.jobs.front())) {
    run_next(stream);
  }
}

// Runs some jobs of randomly drawn streams.
inline void progress() {
  auto& card = state();
  for (uint64_t tries = card.random() % 4; tries > 0; --tries) {
    auto& stream = card.streams[card.random() % kAllStreams];
    if (!stream.jobs.empty() && can_run(stream.jobs.front())) {
      run_next(stream);
    }
  }
  for (int index = 0; index < kAllStreams; ++index) {
    auto& stream = card.streams[index];
    if (stream.jobs.size() > stream.lag) {
      force(index, stream.queued - stream.lag);
    }
  }
}

// Number of the next job of a stream, which comes after all jobs that the host has waited for.
inline uint64_t next_job(int index) {
  auto& stream = state().streams[index];
  join(stream.clock, state().host);
  return stream.queued + 1;
}

inline void push(int index, Job job, double milliseconds) {
  if (is_recorded(index)) {
    state().recording.jobs.push_back(std::move(job.run));
    state().recording.milliseconds += milliseconds;
    return;
  }
  auto& stream = state().streams[index];
  stream.jobs.push_back(std::move(job));
  stream.clock[index] = ++stream.queued;
  stream.free_at = std::max(stream.free_at, now_ms()) + milliseconds;
  if (settings().seed == 0) {
    run_what_can(stream);
  } else {
    progress();
  }
}

// Waits on the host for all jobs of a stream.
inline void wait_on_host(int index) {
  check_not_recorded(index, "the host waits for a stream");
  auto& stream = state().streams[index];
  force(index, stream.queued);
  join(state().host, stream.clock);
  spend_until(stream.free_at);
  check_fault();
}

struct Event {
  int stream = -1;
  uint64_t job = 0;
  Clock clock{};
  double time = 0;
  bool timed = false, recorded = false;
};

inline void record(Event& event, int index) {
  auto& stream = state().streams[index];
  join(stream.clock, state().host);
  event.stream = index;
  event.recorded = is_recorded(index);
  event.job = stream.queued;
  event.clock = stream.clock;
  event.time = std::max(stream.free_at, now_ms());
}

inline void let_wait(int index, const Event& event) {
  const auto side = [](int stream) { return stream % kStreams == 0 ? 0 : 1; };
  if (event.stream < 0 || settings().left_out.count({side(index), side(event.stream)}) != 0) {
    return;
  }
  if (event.recorded != is_recorded(index)) {
    check_not_recorded(state().recording.stream, "a wait between a recorded and another stream");
    TORCH_CHECK(false, "CUDA error: an event of a recorded stream is used after the recording");
  }
  auto& stream = state().streams[index];
  join(stream.clock, event.clock);
  stream.free_at = std::max(stream.free_at, event.time);
  if (event.stream != index) {
    Job job;
    job.awaited = event.stream;
    job.until = event.job;
    push(index, std::move(job), 0);
  }
}

// ---- current card and streams of a thread

struct Current {
  int card = 0;
  std::array<int, kMaxCards> stream{};
};

inline Current& current() {
  thread_local Current current;
  return current;
}

// The stream of this thread's work on a card.
inline int current_stream(int card) {
  return card * kStreams + current().stream[card];
}

// Records that the driver has a context on a card, which permanently takes memory there.
inline void open_context(int card) {
  state().contexts |= uint64_t{1} << card;
}

} // namespace card
