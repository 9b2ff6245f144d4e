#include "base/testing/fake_nvml.h"

#include <dlfcn.h>

namespace fsdpd {

FakeGpu* FakeNvml::Load(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  auto* const gpus = reinterpret_cast<FakeGpu* (*)()>(dlsym(library, "FakeNvmlGpus"));
  return gpus == nullptr ? nullptr : gpus();
}

}  // namespace fsdpd
