// The program's own kernels, which it has compiled for the CPU: launched as jobs of the card's streams.
#pragma once

#include <stdexcept>

#include "fallback.h"

namespace card {

// As kdgat-torch's emulated.h declares it: a bit for each parameter, set for an array, and for one that the kernel may write.
struct Parameters {
  unsigned long long arrays, written;
};

using Launcher = const char* (*)(unsigned blocks, unsigned threads, void** arguments);

// An argument: an array's address and length in bytes, or a value.
using Stored = std::array<uint64_t, 2>;

inline Block& block_at(uint64_t address) {
  const auto* start = reinterpret_cast<char*>(address);
  auto next = memory().blocks.upper_bound(const_cast<char*>(start));
  TORCH_CHECK(next != memory().blocks.begin(), "software card: a kernel's array is not on a card");
  Block& block = *std::prev(next)->second;
  TORCH_CHECK(start < block.address + block.size && block.number != 0, "software card: a kernel's array is not on a card");
  return block;
}

inline void launch(
    int index, const char* kernel, Launcher launcher, unsigned blocks, unsigned threads, std::vector<Stored> arguments, Parameters parameters) {
  Lock lock(state().lock);
  check_call("launch");
  check_last_error(kernel);
  const int stream = current_stream(index);
  state().counts.beside_current_card += index != current().card;
  const uint64_t job = next_job(stream);
  for (size_t place = 0; place < arguments.size(); ++place) {
    uint64_t& address = arguments[place][0];
    if ((parameters.arrays >> place & 1) != 0 && address != 0) {
      use(block_at(address), stream, job, (parameters.written >> place & 1) != 0, kernel);
      address = reinterpret_cast<uint64_t>(usable(index, reinterpret_cast<void*>(address)));
    }
  }
  check_fault();
  ++state().counts.kernels;
  auto run = [=]() mutable {
    std::vector<void*> places;
    for (Stored& argument : arguments) {
      places.push_back(argument.data());
    }
    if (const char* failure = launcher(blocks, threads, places.data())) {
      throw std::runtime_error(failure);
    }
  };
  push(stream, {std::move(run)}, operator_ms(kernel));
}

} // namespace card

extern "C" const char* software_card_launch(
    int index, const char* kernel, card::Launcher launcher, unsigned blocks, unsigned threads, void** arguments, int count,
    card::Parameters parameters) {
  thread_local std::string failure;
  try {
    std::vector<card::Stored> stored(count);
    for (int place = 0; place < count; ++place) {
      std::memcpy(&stored[place], arguments[place], sizeof(card::Stored));
    }
    card::launch(index, kernel, launcher, blocks, threads, std::move(stored), parameters);
    return nullptr;
  } catch (const std::exception& error) {
    failure = error.what();
    return failure.c_str();
  }
}
