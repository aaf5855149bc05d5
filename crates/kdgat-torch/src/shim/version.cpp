// Configuration of the loaded libtorch.
#include "shim.h"

#include <ATen/Version.h>

#include <string>

// Writes one text, allocated by malloc: libtorch's configuration and a line "CAPABILITY=...".
extern "C" char* kdgat_torch_config(char** text) {
  return kdgat::guarded([&] {
    const std::string config = at::show_config() + "\nCAPABILITY=" + at::get_cpu_capability() + "\n";
    *text = kdgat::error_text(config.c_str());
  });
}
