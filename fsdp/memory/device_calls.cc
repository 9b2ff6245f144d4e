#include "fsdp/memory/device_calls.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>

namespace fsdpd {
namespace {

// ABI of cuda_runtime_api.h and cuda.h, written out: these functions must not be declared as in those
// headers, and programs without CUDA contain them too, uncalled.
using Error = int;  // 0 is success.
constexpr Error kNotSupported = 801;

constexpr int kMostDevices = 64;  // Per host. Further devices share the last counters.

struct Counts {
  std::atomic<int64_t> mallocs{0};
  std::atomic<int64_t> frees{0};
};

std::array<Counts, kMostDevices>& AllCounts() {
  // Never destroyed: libraries free memory at exit.
  static auto* counts = new std::array<Counts, kMostDevices>();
  return *counts;
}

Counts& CountsOf(int device) { return AllCounts()[device < kMostDevices ? device : kMostDevices - 1]; }

// The interposed function.
template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

Counts& CurrentCounts() {
  static auto* const get_device = Real<Error(int*)>("cudaGetDevice");
  int device = 0;
  if (get_device == nullptr || get_device(&device) != 0 || device < 0) device = 0;
  return CountsOf(device);
}

template <typename Function, typename... Arguments>
Error CountedMalloc(Function* real, Arguments... arguments) {
  if (real == nullptr) return kNotSupported;
  const Error error = real(arguments...);
  if (error == 0) CountDeviceMalloc();
  return error;
}

// Freeing null initializes the runtime and is not counted.
template <typename Function, typename... Arguments>
Error CountedFree(Function* real, void* pointer, Arguments... arguments) {
  if (real == nullptr) return kNotSupported;
  const Error error = real(pointer, arguments...);
  if (error == 0 && pointer != nullptr) CountDeviceFree();
  return error;
}

// Driver functions, which LibTorch calls for expandable segments.
using CreateFn = Error(unsigned long long*, size_t, const void*, unsigned long long);
using ReleaseFn = Error(unsigned long long);
std::atomic<CreateFn*> real_create{nullptr};
std::atomic<ReleaseFn*> real_release{nullptr};

Error CountedCreate(unsigned long long* handle, size_t bytes, const void* kind, unsigned long long flags) {
  return CountedMalloc(real_create.load(), handle, bytes, kind, flags);
}

Error CountedRelease(unsigned long long handle) {
  const Error error = real_release.load()(handle);
  if (error == 0) CountDeviceFree();
  return error;
}

template <typename Function>
void PutInFront(Function* ours, std::atomic<Function*>* real, void** found) {
  real->store(reinterpret_cast<Function*>(*found));
  *found = reinterpret_cast<void*>(ours);
}

}  // namespace

DeviceCalls ReadDeviceCalls(int device_index) {
  const Counts& counts = CountsOf(device_index);
  return {counts.mallocs.load(std::memory_order_relaxed), counts.frees.load(std::memory_order_relaxed)};
}

void CountDeviceMalloc() { CurrentCounts().mallocs.fetch_add(1, std::memory_order_relaxed); }
void CountDeviceFree() { CurrentCounts().frees.fetch_add(1, std::memory_order_relaxed); }

}  // namespace fsdpd

extern "C" {

int cudaMalloc(void** pointer, size_t bytes) {
  static auto* const real = fsdpd::Real<int(void**, size_t)>("cudaMalloc");
  return fsdpd::CountedMalloc(real, pointer, bytes);
}

int cudaMallocManaged(void** pointer, size_t bytes, unsigned flags) {
  static auto* const real = fsdpd::Real<int(void**, size_t, unsigned)>("cudaMallocManaged");
  return fsdpd::CountedMalloc(real, pointer, bytes, flags);
}

int cudaMallocAsync(void** pointer, size_t bytes, void* stream) {
  static auto* const real = fsdpd::Real<int(void**, size_t, void*)>("cudaMallocAsync");
  return fsdpd::CountedMalloc(real, pointer, bytes, stream);
}

int cudaMallocFromPoolAsync(void** pointer, size_t bytes, void* pool, void* stream) {
  static auto* const real = fsdpd::Real<int(void**, size_t, void*, void*)>("cudaMallocFromPoolAsync");
  return fsdpd::CountedMalloc(real, pointer, bytes, pool, stream);
}

int cudaFree(void* pointer) {
  static auto* const real = fsdpd::Real<int(void*)>("cudaFree");
  return fsdpd::CountedFree(real, pointer);
}

int cudaFreeAsync(void* pointer, void* stream) {
  static auto* const real = fsdpd::Real<int(void*, void*)>("cudaFreeAsync");
  return fsdpd::CountedFree(real, pointer, stream);
}

int cudaGetDriverEntryPointByVersion(const char* symbol, void** found, unsigned version,
                                     unsigned long long flags, int* status) {
  static auto* const real = fsdpd::Real<int(const char*, void**, unsigned, unsigned long long, int*)>(
      "cudaGetDriverEntryPointByVersion");
  if (real == nullptr) return fsdpd::kNotSupported;
  const int error = real(symbol, found, version, flags, status);
  if (error != 0 || *found == nullptr) return error;
  if (std::strcmp(symbol, "cuMemCreate") == 0)
    fsdpd::PutInFront(&fsdpd::CountedCreate, &fsdpd::real_create, found);
  if (std::strcmp(symbol, "cuMemRelease") == 0)
    fsdpd::PutInFront(&fsdpd::CountedRelease, &fsdpd::real_release, found);
  return error;
}
}
