// Runs this program's CUDA C++ on a CPU, for tests: one warp after the other, its lanes as fibres that wait for each
// other where they exchange values. Fails with a reason if a lane leaves while others wait, or if an array is accessed
// out of bounds.
#pragma once

#include <math.h>
#include <ucontext.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define ARRAY(type) emulated::Array<type>

namespace emulated {

// An array as passed by the launching side; absent if `data` is null.
struct RawArray {
  void* data;
  unsigned long long bytes;
};

[[noreturn]] inline void fail(const std::string& reason);

template <typename T>
class Array {
 public:
  explicit Array(RawArray raw) : data_(static_cast<T*>(raw.data)), length_(static_cast<long long>(raw.bytes / sizeof(T))) {}

  explicit operator bool() const {
    return data_ != nullptr;
  }

  T& operator[](long long index) const {
    if (index < 0 || index >= length_) {
      fail("index " + std::to_string(index) + " of an array of " + std::to_string(length_));
    }
    return data_[index];
  }

 private:
  T* data_;
  long long length_;
};

struct Dimensions {
  unsigned x = 1, y = 1, z = 1;
};

constexpr int WARP = 32;
constexpr std::size_t STACK_BYTES = 64 << 10;

struct Lane {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(STACK_BYTES);
  bool finished = false;
};

struct State {
  ucontext_t scheduler;
  Lane lanes[WARP];
  int running = 0;
  unsigned long long exchanges[WARP];
  // Two slots per lane, so that a lane may write its next value before all have read its last.
  unsigned long long slots[2][WARP];
  std::function<void()> body;
  std::string failure;
};

// Static: each of several libraries loaded by a test has its own.
static State state;
static Dimensions block_index, thread_index, block_size;

// Yields permanently: the scheduler does not resume a lane after a failure.
[[noreturn]] inline void fail(const std::string& reason) {
  if (state.failure.empty()) {
    state.failure = reason;
  }
  state.lanes[state.running].finished = true;
  swapcontext(&state.lanes[state.running].context, &state.scheduler);
  std::abort();
}

inline void run_lane() {
  state.body();
  state.lanes[state.running].finished = true;
}

// The value of lane `from`, once all lanes have provided theirs.
template <typename T>
T exchange(unsigned mask, T value, int from) {
  static_assert(sizeof(T) <= sizeof(unsigned long long), "one slot");
  if (mask != 0xffffffffu) {
    fail("an exchange among some lanes of a warp only");
  }
  const int lane = state.running;
  const int place = state.exchanges[lane]++ % 2;
  std::memcpy(&state.slots[place][lane], &value, sizeof(T));
  swapcontext(&state.lanes[lane].context, &state.scheduler);
  T other;
  std::memcpy(&other, &state.slots[place][from], sizeof(T));
  return other;
}

inline void run_warp(unsigned first_thread) {
  for (int lane = 0; lane < WARP; ++lane) {
    Lane& own = state.lanes[lane];
    own.finished = false;
    state.exchanges[lane] = 0;
    getcontext(&own.context);
    own.context.uc_stack.ss_sp = own.stack.data();
    own.context.uc_stack.ss_size = own.stack.size();
    own.context.uc_link = &state.scheduler;
    makecontext(&own.context, run_lane, 0);
  }
  for (;;) {
    int finished = 0;
    for (int lane = 0; lane < WARP && state.failure.empty(); ++lane) {
      state.running = lane;
      thread_index.x = first_thread + lane;
      swapcontext(&state.scheduler, &state.lanes[lane].context);
      finished += state.lanes[lane].finished;
    }
    if (!state.failure.empty() || finished == WARP) {
      return;
    }
    if (finished > 0) {
      state.failure = std::to_string(finished) + " lanes of a warp have left while the others wait for them";
      return;
    }
  }
}

template <typename T>
T argument(void* place) {
  T value;
  std::memcpy(&value, place, sizeof(T));
  return value;
}

template <>
inline RawArray argument<RawArray>(void* place) {
  return *static_cast<RawArray*>(place);
}

template <typename T>
struct Passed {
  static T of(void* place) {
    return argument<T>(place);
  }
};

template <typename T>
struct Passed<Array<T>> {
  static Array<T> of(void* place) {
    return Array<T>(argument<RawArray>(place));
  }
};

template <typename T>
struct Kind {
  static constexpr bool is_array = false, is_written = false;
};

template <typename T>
struct Kind<Array<T>> {
  static constexpr bool is_array = true, is_written = !std::is_const<T>::value;
};

// A bit for each parameter of a kernel, the first one lowest: set for an array, and for an array that it may write.
struct Parameters {
  unsigned long long arrays, written;
};

template <typename... Arguments>
Parameters parameters(void (*)(Arguments...)) {
  static_assert(sizeof...(Arguments) <= 64, "a bit for each");
  Parameters found{0, 0};
  int place = 0;
  ((found.arrays |= static_cast<unsigned long long>(Kind<Arguments>::is_array) << place,
    found.written |= static_cast<unsigned long long>(Kind<Arguments>::is_written) << place, ++place), ...);
  return found;
}

template <typename... Arguments, std::size_t... Places>
void set_body(void (*kernel)(Arguments...), void** places, std::index_sequence<Places...>) {
  state.body = [=] { kernel(Passed<Arguments>::of(places[Places])...); };
}

// Null, or the reason of a failure, valid until the next launch.
template <typename... Arguments>
const char* launch(void (*kernel)(Arguments...), unsigned blocks, unsigned threads, void** places) {
  state.failure.clear();
  set_body(kernel, places, std::index_sequence_for<Arguments...>{});
  block_size.x = threads;
  for (unsigned block = 0; block < blocks && state.failure.empty(); ++block) {
    block_index.x = block;
    for (unsigned first = 0; first < threads && state.failure.empty(); first += WARP) {
      run_warp(first);
    }
  }
  return state.failure.empty() ? nullptr : state.failure.c_str();
}

} // namespace emulated

#define blockIdx emulated::block_index
#define threadIdx emulated::thread_index
#define blockDim emulated::block_size

template <typename T>
T __shfl_sync(unsigned mask, T value, int from) {
  return emulated::exchange(mask, value, from);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  return emulated::exchange(mask, value, emulated::state.running ^ distance);
}

template <typename To, typename From>
To same_bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To result;
  std::memcpy(&result, &value, sizeof(To));
  return result;
}

inline float __uint_as_float(unsigned bits) {
  return same_bits<float>(bits);
}

inline unsigned __float_as_uint(float value) {
  return same_bits<unsigned>(value);
}

inline int __float_as_int(float value) {
  return same_bits<int>(value);
}

inline long long __double_as_longlong(double value) {
  return same_bits<long long>(value);
}
