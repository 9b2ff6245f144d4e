#include <algorithm>

#include "fsdp/kernels/nf4/nf4_conversion.h"
#include "fsdp/kernels/nf4/nf4_format.h"
#include "fsdp/kernels/pack.cuh"

namespace fsdpd::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 132 * 16;  // Sixteen per multiprocessor of an H100.

unsigned GridOf(int64_t threads) {
  return static_cast<unsigned>(std::min<int64_t>((threads + kThreads - 1) / kThreads, kMaxBlocks));
}

// A block of numbers per thread: only initialization runs it.
__global__ void Quantize(const float* numbers, int64_t count, uint8_t* blocks) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride)
    Nf4Quantize(numbers + i * kNf4Block, blocks + i * kNf4BlockBytes);
}

// Eight numbers per thread: one word of codes.
template <typename T>
__global__ void Dequantize(const uint8_t* blocks, int64_t words, T* to) {
  constexpr int kWord = 8, kWords = static_cast<int>(kNf4Block) / kWord;
  __shared__ float levels[16];
  if (threadIdx.x < 16) levels[threadIdx.x] = Nf4Level(static_cast<int>(threadIdx.x));
  __syncthreads();
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < words; i += stride) {
    const uint8_t* const block = blocks + i / kWords * kNf4BlockBytes;
    const float largest = *reinterpret_cast<const float*>(block);
    const uint32_t codes = reinterpret_cast<const uint32_t*>(block)[1 + i % kWords];
    Pack<T, kWord> numbers;
#pragma unroll
    for (int n = 0; n < kWord; ++n) {
      const int shift = n / 2 * 8 + (n % 2 == 0 ? 4 : 0);  // The first of a byte is in its high half.
      numbers.at[n] = Narrow<T>(levels[codes >> shift & 15] * largest);
    }
    Store(to, i, numbers);
  }
}

}  // namespace

void QuantizeNf4(const float* numbers, int64_t elements, uint8_t* blocks, Stream stream) {
  if (elements == 0) return;
  const int64_t count = elements / kNf4Block;
  Quantize<<<GridOf(count), kThreads, 0, stream>>>(numbers, count, blocks);
  CheckLaunch("numbers to NF4");
}

void DequantizeNf4(const uint8_t* blocks, int64_t elements, void* to, DType type, Stream stream) {
  if (elements == 0) return;
  const int64_t words = elements / 8;
  WithType(type, [&](auto of_type) {
    using T = decltype(of_type);
    Dequantize<<<GridOf(words), kThreads, 0, stream>>>(blocks, words, static_cast<T*>(to));
  });
  CheckLaunch("numbers from NF4");
}

}  // namespace fsdpd::kernels
