// Declarations of the types of Gloo that c10d's ProcessGroupGloo.hpp mentions; see ../process_group.cpp.
#pragma once

#include <chrono>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
namespace transport {
class Device;
class UnboundBuffer;
} // namespace transport
} // namespace gloo
