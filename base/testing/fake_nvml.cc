#include "base/testing/fake_nvml.h"

#include <dlfcn.h>

namespace fsdpd {
namespace {

template <typename T>
T* Loaded(const char* path, const char* function) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  auto* const get = reinterpret_cast<T* (*)()>(dlsym(library, function));
  return get == nullptr ? nullptr : get();
}

}  // namespace

FakeGpu* FakeNvml::Load(const char* path) { return Loaded<FakeGpu>(path, "FakeNvmlGpus"); }

FakeNvml::Driver* FakeNvml::LoadDriver(const char* path) { return Loaded<Driver>(path, "FakeNvmlDriver"); }

}  // namespace fsdpd
