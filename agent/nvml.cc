#include "agent/nvml.h"

#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_cat.h>
#include <dlfcn.h>

namespace fsdpd {
namespace {

constexpr char kLibrary[] = "libnvidia-ml.so.1";

// nvml.h's stable ABI, spelt out because Debian does not carry the header.
using NvmlReturn = int;  // 0 is success.
using NvmlDevice = struct NvmlDeviceOpaque*;
struct NvmlMemory {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
constexpr unsigned kMemoryVersion = sizeof(NvmlMemory) | 2 << 24;
using InitFn = NvmlReturn();
using ShutdownFn = NvmlReturn();
using GetCountFn = NvmlReturn(unsigned*);
using GetHandleFn = NvmlReturn(unsigned, NvmlDevice*);
using GetMemoryFn = NvmlReturn(NvmlDevice, NvmlMemory*);

absl::Status Failed(absl::string_view call, NvmlReturn code) {
  return absl::UnavailableError(absl::StrCat(kLibrary, ": ", call, " failed with code ", code));
}

}  // namespace

absl::StatusOr<std::vector<GpuMemory>> ReadGpus() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::UnavailableError(absl::StrCat("no NVIDIA driver: ", dlerror()));
  auto close_library = absl::MakeCleanup([library] { dlclose(library); });

  auto* init = reinterpret_cast<InitFn*>(dlsym(library, "nvmlInit_v2"));
  auto* shutdown = reinterpret_cast<ShutdownFn*>(dlsym(library, "nvmlShutdown"));
  auto* get_count = reinterpret_cast<GetCountFn*>(dlsym(library, "nvmlDeviceGetCount_v2"));
  auto* get_handle = reinterpret_cast<GetHandleFn*>(dlsym(library, "nvmlDeviceGetHandleByIndex_v2"));
  auto* get_memory = reinterpret_cast<GetMemoryFn*>(dlsym(library, "nvmlDeviceGetMemoryInfo_v2"));
  if (!init || !shutdown || !get_count || !get_handle || !get_memory) {
    return absl::UnavailableError(
        absl::StrCat(kLibrary, " lacks a function that every driver since 2022 (510) has"));
  }
  if (const NvmlReturn code = init(); code != 0) return Failed("nvmlInit", code);
  auto close_nvml = absl::MakeCleanup([shutdown] { shutdown(); });

  unsigned count = 0;
  if (const NvmlReturn code = get_count(&count); code != 0) return Failed("nvmlDeviceGetCount", code);
  std::vector<GpuMemory> gpus;
  for (unsigned index = 0; index < count; ++index) {
    NvmlDevice device = nullptr;
    NvmlMemory memory = {};
    memory.version = kMemoryVersion;
    if (const NvmlReturn code = get_handle(index, &device); code != 0)
      return Failed("nvmlDeviceGetHandle", code);
    if (const NvmlReturn code = get_memory(device, &memory); code != 0)
      return Failed("nvmlDeviceGetMemory", code);
    gpus.push_back({static_cast<int64_t>(memory.total), static_cast<int64_t>(memory.reserved)});
  }
  return gpus;
}

}  // namespace fsdpd
