#include <algorithm>

#include "fsdp/kernels/pack.cuh"
#include "fsdp/kernels/swiglu.cuh"
#include "fsdp/kernels/swiglu.h"

namespace fsdpd::kernels {
namespace {

constexpr int kThreads = 256;

// The row is the block's x index; each thread has one pack of columns, which keeps enough independent loads
// in flight without a loop.
__device__ int64_t Column() { return static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x; }

template <typename T, int N>
__global__ void Forward(const T* gate_up, T* product, int64_t packs) {
  const int64_t row = blockIdx.x, i = Column();
  if (i >= packs) return;
  const auto g = Load<T, N>(gate_up, 2 * row * packs + i), u = Load<T, N>(gate_up, (2 * row + 1) * packs + i);
  Pack<T, N> out;
  for (int k = 0; k < N; ++k) out.at[k] = Narrow<T>(SwigluOf(Wide(g.at[k]), Wide(u.at[k])));
  Store(product, row * packs + i, out);
}

template <typename T, int N>
__global__ void Backward(T* grad_product, T* gate_up, int64_t packs) {
  const int64_t row = blockIdx.x, i = Column();
  if (i >= packs) return;
  const int64_t gate = 2 * row * packs + i, up = gate + packs;
  auto d = Load<T, N>(grad_product, row * packs + i);
  auto g = Load<T, N>(gate_up, gate), u = Load<T, N>(gate_up, up);
  for (int k = 0; k < N; ++k) {
    const SwigluMade made = SwigluBackwardOf(Wide(d.at[k]), Wide(g.at[k]), Wide(u.at[k]));
    d.at[k] = Narrow<T>(made.product);
    g.at[k] = Narrow<T>(made.gate);
    u.at[k] = Narrow<T>(made.up);
  }
  Store(grad_product, row * packs + i, d);
  Store(gate_up, gate, g);
  Store(gate_up, up, u);
}

// Rows go along x because only the first grid dimension is large enough for the number of tokens.
struct Launch {
  dim3 blocks;
  unsigned threads;
};
Launch LaunchOf(int64_t rows, int64_t packs) {
  const auto threads = static_cast<unsigned>(std::min<int64_t>(kThreads, (packs + 31) / 32 * 32));
  return {dim3(static_cast<unsigned>(rows), BlocksOf(packs, threads)), threads};
}

}  // namespace

void SwigluForward(const void* gate_up, void* product, int64_t rows, int64_t width, DType type,
                   Stream stream) {
  if (rows == 0 || width == 0) return;
  WithType(type, [&](auto of_type) {
    using T = decltype(of_type);
    const bool whole = Packs<T>(width, {gate_up, product});
    const int64_t packs = whole ? width / kPack<T> : width;
    const auto kernel = whole ? Forward<T, kPack<T>> : Forward<T, 1>;
    const Launch launch = LaunchOf(rows, packs);
    kernel<<<launch.blocks, launch.threads, 0, stream>>>(static_cast<const T*>(gate_up),
                                                         static_cast<T*>(product), packs);
  });
  CheckLaunch("swiglu forward");
}

void SwigluBackward(void* grad_product, void* gate_up, int64_t rows, int64_t width, DType type,
                    Stream stream) {
  if (rows == 0 || width == 0) return;
  WithType(type, [&](auto of_type) {
    using T = decltype(of_type);
    const bool whole = Packs<T>(width, {grad_product, gate_up});
    const int64_t packs = whole ? width / kPack<T> : width;
    const auto kernel = whole ? Backward<T, kPack<T>> : Backward<T, 1>;
    const Launch launch = LaunchOf(rows, packs);
    kernel<<<launch.blocks, launch.threads, 0, stream>>>(static_cast<T*>(grad_product),
                                                         static_cast<T*>(gate_up), packs);
  });
  CheckLaunch("swiglu backward");
}

}  // namespace fsdpd::kernels
