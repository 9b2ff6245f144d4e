// Fake CUDA runtime: a shared library with the memory functions of the runtime that calls them by their
// public names, as LibTorch does. Two devices; more than one gigabyte is out of memory.
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kOutOfMemory = 2;
constexpr size_t kMostBytes = size_t{1} << 30;
int device = 0;

int Take(void** pointer, size_t bytes) {
  if (bytes > kMostBytes) return kOutOfMemory;
  *pointer = std::malloc(bytes);
  return 0;
}

int Give(void* pointer) {
  std::free(pointer);
  return 0;
}

int Create(unsigned long long* handle, size_t bytes, const void*, unsigned long long) {
  *handle = 1;
  return bytes > kMostBytes ? kOutOfMemory : 0;
}

int Release(unsigned long long) { return 0; }

}  // namespace

extern "C" {

int cudaGetDevice(int* current) {
  *current = device;
  return 0;
}
int cudaMalloc(void** pointer, size_t bytes) { return Take(pointer, bytes); }
int cudaMallocManaged(void** pointer, size_t bytes, unsigned) { return Take(pointer, bytes); }
int cudaMallocAsync(void** pointer, size_t bytes, void*) { return Take(pointer, bytes); }
int cudaMallocFromPoolAsync(void** pointer, size_t bytes, void*, void*) { return Take(pointer, bytes); }
int cudaFree(void* pointer) { return Give(pointer); }
int cudaFreeAsync(void* pointer, void*) { return Give(pointer); }
int cudaGetDriverEntryPointByVersion(const char* symbol, void** found, unsigned, unsigned long long, int*) {
  *found = nullptr;
  if (std::strcmp(symbol, "cuMemCreate") == 0) *found = reinterpret_cast<void*>(&Create);
  if (std::strcmp(symbol, "cuMemRelease") == 0) *found = reinterpret_cast<void*>(&Release);
  return 0;
}

// Controls for tests.
void FakeSetDevice(int index) { device = index; }

// Allocates and frees with each of the functions: four calls each. Returns the first error.
int FakeAllocateAndFree(size_t bytes) {
  void* pointer = nullptr;
  int error = cudaMalloc(&pointer, bytes);
  if (error != 0) return error;
  error |= cudaFree(pointer);
  error |= cudaMallocManaged(&pointer, bytes, 1);
  error |= cudaFree(pointer);
  error |= cudaMallocAsync(&pointer, bytes, nullptr);
  error |= cudaFreeAsync(pointer, nullptr);
  error |= cudaMallocFromPoolAsync(&pointer, bytes, nullptr, nullptr);
  error |= cudaFreeAsync(pointer, nullptr);
  return error | cudaFree(nullptr);
}

// As LibTorch does for expandable segments: one call each.
int FakeGrowAndShrink(size_t bytes) {
  void* create = nullptr;
  void* release = nullptr;
  cudaGetDriverEntryPointByVersion("cuMemCreate", &create, 13000, 0, nullptr);
  cudaGetDriverEntryPointByVersion("cuMemRelease", &release, 13000, 0, nullptr);
  unsigned long long handle = 0;
  const int error = reinterpret_cast<decltype(&Create)>(create)(&handle, bytes, nullptr, 0);
  return error != 0 ? error : reinterpret_cast<decltype(&Release)>(release)(handle);
}

int FakeFind(const char* symbol, void** found) {
  return cudaGetDriverEntryPointByVersion(symbol, found, 13000, 0, nullptr);
}
}
