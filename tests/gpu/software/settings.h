// Settings of the card, read once from the environment.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

extern char** environ;

namespace card {

constexpr int kMaxCards = 4;
// Streams of each card: the default one, and a pool of side streams, assigned in turn.
constexpr int kStreams = 8;

[[noreturn]] inline void refuse(const std::string& what) {
  std::fprintf(stderr, "software card: %s\n", what.c_str());
  std::fflush(stderr);
  ::_exit(87);
}

// Failing calls of one kind: `n`, `n-m`, or `n+` for all from the n-th on, counted from one.
struct Range {
  uint64_t first = 0, last = 0;
};

struct Settings {
  int cards = 1;
  size_t memory = size_t{4} << 30;
  uint64_t seed = 0;
  bool poison = true;
  bool check = true;
  std::map<std::string, std::vector<Range>> failures;
  // Pairs (waiting stream, awaited stream) whose waits are left out. Stream 0 is the default one, 1 any side stream.
  std::set<std::pair<int, int>> left_out;
  bool leaves_out_recorded_streams = false;
  // An operator that takes this long, in milliseconds; the host then really waits for the card.
  std::string slow_operator;
  double slow_ms = 0;
  // Memory that the first matrix product of each stream takes for good.
  size_t workspace = 0;
  bool is_sliced = false;
  // Compute capability, such as 75 for 7.5.
  int capability = 90;
  std::string report;
};

inline std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(separator, start), text.size());
    if (end > start) {
      parts.push_back(text.substr(start, end - start));
    }
    start = end + 1;
  }
  return parts;
}

inline uint64_t number(const std::string& name, const std::string& text) {
  char* end = nullptr;
  const uint64_t value = std::strtoull(text.c_str(), &end, 10);
  if (text.empty() || text[0] == '-' || *end != '\0') {
    refuse(name + "=" + text + ": a number is expected");
  }
  return value;
}

inline void read_failures(const std::string& name, const std::string& text, Settings& settings) {
  static const std::set<std::string> kinds = {
      "allocate", "upload", "copy", "launch", "register", "unregister", "event", "record", "wait", "synchronize", "stream"};
  for (const auto& entry : split(text, ',')) {
    const size_t colon = entry.find(':');
    const std::string kind = entry.substr(0, colon);
    if (colon == std::string::npos || kinds.count(kind) == 0) {
      refuse(name + "=" + text + ": entries are KIND:N, KIND:N-M or KIND:N+, of a kind of calls; found " + entry);
    }
    std::string calls = entry.substr(colon + 1);
    Range range;
    if (!calls.empty() && calls.back() == '+') {
      calls.pop_back();
      range = {number(name, calls), UINT64_MAX};
    } else if (const size_t dash = calls.find('-'); dash != std::string::npos) {
      range = {number(name, calls.substr(0, dash)), number(name, calls.substr(dash + 1))};
    } else {
      range = {number(name, calls), number(name, calls)};
    }
    settings.failures[kind].push_back(range);
  }
}

inline void read_left_out(const std::string& name, const std::string& text, Settings& settings) {
  for (const auto& entry : split(text, ',')) {
    if (entry == "record_stream") {
      settings.leaves_out_recorded_streams = true;
    } else if (entry.size() == 3 && entry[1] == '<' && (entry[0] == '0' || entry[0] == '1')) {
      settings.left_out.insert({entry[0] - '0', entry[2] - '0'});
    } else {
      refuse(name + "=" + text + ": entries are 0<1, 1<0, 1<1 or record_stream; found " + entry);
    }
  }
}

inline void read_slow(const std::string& name, const std::string& text, Settings& settings) {
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0) {
    refuse(name + "=" + text + ": OPERATOR=MILLISECONDS is expected, such as aten::add.Tensor=50");
  }
  settings.slow_operator = text.substr(0, equals);
  settings.slow_ms = static_cast<double>(number(name, text.substr(equals + 1)));
}

inline Settings read_settings() {
  Settings settings;
  const std::string prefix = "SOFTWARE_CARD_";
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (text.compare(0, prefix.size(), prefix) != 0 || equals == std::string::npos) {
      continue;
    }
    const std::string name = text.substr(0, equals), value = text.substr(equals + 1);
    const std::string key = name.substr(prefix.size());
    if (key == "COUNT") {
      settings.cards = static_cast<int>(number(name, value));
    } else if (key == "MEMORY") {
      settings.memory = number(name, value);
    } else if (key == "SEED") {
      settings.seed = number(name, value);
    } else if (key == "POISON") {
      settings.poison = number(name, value) != 0;
    } else if (key == "CHECK") {
      settings.check = number(name, value) != 0;
    } else if (key == "FAIL") {
      read_failures(name, value, settings);
    } else if (key == "LEAVE_OUT") {
      read_left_out(name, value, settings);
    } else if (key == "SLOW") {
      read_slow(name, value, settings);
    } else if (key == "WORKSPACE") {
      settings.workspace = number(name, value);
    } else if (key == "MIG") {
      settings.is_sliced = number(name, value) != 0;
    } else if (key == "CAPABILITY") {
      settings.capability = static_cast<int>(number(name, value));
    } else if (key == "REPORT") {
      settings.report = value;
    } else {
      refuse(name + " is not a setting (COUNT, MEMORY, SEED, POISON, CHECK, FAIL, LEAVE_OUT, SLOW, WORKSPACE, MIG,"
             " CAPABILITY, REPORT)");
    }
  }
  if (settings.cards < 1 || settings.cards > kMaxCards) {
    refuse("SOFTWARE_CARD_COUNT: 1 to 4 cards are possible");
  }
  return settings;
}

inline const Settings& settings() {
  static const Settings* read = new Settings(read_settings());
  return *read;
}

} // namespace card
