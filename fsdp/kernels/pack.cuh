// Shared device code: vectorized access of 16 bytes of any type, conversion to fp32, and checked launches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

// N adjacent elements. Up to 16 bytes are loaded or stored with one instruction.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

template <typename T>
constexpr int kPack = 16 / sizeof(T);

__device__ inline float Wide(float x) { return x; }
__device__ inline float Wide(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float Wide(__half x) { return __half2float(x); }

template <typename T>
__device__ T Narrow(float x);
template <>
__device__ inline float Narrow<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 Narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half Narrow<__half>(float x) {
  return __float2half_rn(x);
}

template <typename T, int N>
__device__ Pack<T, N> Load(const T* from, int64_t pack) {
  return reinterpret_cast<const Pack<T, N>*>(from)[pack];
}
template <typename T, int N>
__device__ void Store(T* to, int64_t pack, const Pack<T, N>& value) {
  reinterpret_cast<Pack<T, N>*>(to)[pack] = value;
}

// Calls run(T()) with the device type for `dtype`.
template <typename Run>
void WithType(DType dtype, Run run) {
  switch (dtype) {
    case DType::kFp32:
      return run(float());
    case DType::kBf16:
      return run(__nv_bfloat16());
    case DType::kFp16:
      return run(__half());
    case DType::kFp8:
      throw std::logic_error("DType: FP8 is not supported by this kernel");
  }
}

// Whether rows of `width` elements of type T at these addresses can be accessed 16 bytes at a time.
template <typename T>
bool Packs(int64_t width, std::initializer_list<const void*> addresses) {
  bool aligned = width % kPack<T> == 0;
  for (const void* address : addresses) aligned = aligned && reinterpret_cast<uintptr_t>(address) % 16 == 0;
  return aligned;
}

inline unsigned BlocksOf(int64_t items, int64_t block) {
  return static_cast<unsigned>((items + block - 1) / block);
}

// Call it after each launch.
inline void CheckLaunch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("kernel ") + kernel + ": " + cudaGetErrorString(error));
  }
}

// Sum over kLanes neighboring lanes (a power of two), returned to each of them.
template <int kLanes>
__device__ float LanesSum(float x) {
  for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

__device__ inline float WarpSum(float x) { return LanesSum<32>(x); }

// Calls run(kLanes) with the smallest number of lanes that covers `packs` at one pack per lane, or wide() if
// a warp is too small.
template <typename Run, typename Wide>
void WithLanes(int64_t packs, Run run, Wide wide) {
  if (packs <= 4) return run(std::integral_constant<int, 4>());
  if (packs <= 8) return run(std::integral_constant<int, 8>());
  if (packs <= 16) return run(std::integral_constant<int, 16>());
  if (packs <= 32) return run(std::integral_constant<int, 32>());
  wide();
}

}  // namespace fsdpd::kernels
