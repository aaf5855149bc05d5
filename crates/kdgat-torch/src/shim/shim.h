// What the C++ files of this folder share. Every exported function returns null, or the text of what
// went wrong, allocated by malloc: no exception leaves C++, and no panic enters it.
#pragma once

#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <exception>

namespace kdgat {

inline char* error_text(const char* text) noexcept {
  char* copy = ::strdup(text);
  // Null would mean success; with no memory left for a text there is nothing better to do than to stop.
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
