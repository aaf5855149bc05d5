// Shared by the C++ files of this folder. Every exported function returns null, or an error text allocated by malloc:
// no exception leaves C++, and no panic enters it.
#pragma once

#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <exception>

namespace kdgat {

inline char* error_text(const char* text) noexcept {
  char* copy = ::strdup(text);
  // Null would mean success; without memory for the text, all we can do is stop.
  if (copy == nullptr) {
    std::abort();
  }
  return copy;
}

template <typename Body>
char* guarded(Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const c10::Error& error) {
    return error_text(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return error_text(error.what());
  } catch (...) {
    return error_text("an exception of unknown type was thrown in libtorch");
  }
}

} // namespace kdgat
