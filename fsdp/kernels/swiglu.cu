#include "fsdp/kernels/pack.cuh"
#include "fsdp/kernels/swiglu.h"

namespace fsdpd::kernels {
namespace {

constexpr int kThreads = 256;

__device__ float Sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

// One pack a thread: enough independent loads in flight without a loop.
template <typename T, int N>
__global__ void Forward(const T* gate, const T* up, T* product, int64_t packs) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= packs) return;
  const auto g = Load<T, N>(gate, i), u = Load<T, N>(up, i);
  Pack<T, N> out;
  for (int k = 0; k < N; ++k) {
    const float x = Wide(g.at[k]);
    out.at[k] = Narrow<T>(x * Sigmoid(x) * Wide(u.at[k]));
  }
  Store(product, i, out);
}

// silu'(x) = s (1 + x (1 - s)), s = sigmoid(x).
template <typename T, int N>
__global__ void Backward(const T* grad_product, T* gate, T* up, int64_t packs) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= packs) return;
  const auto d = Load<T, N>(grad_product, i);
  auto g = Load<T, N>(gate, i), u = Load<T, N>(up, i);
  for (int k = 0; k < N; ++k) {
    const float x = Wide(g.at[k]), grad = Wide(d.at[k]), sigmoid = Sigmoid(x);
    g.at[k] = Narrow<T>(grad * Wide(u.at[k]) * sigmoid * (1.0f + x * (1.0f - sigmoid)));
    u.at[k] = Narrow<T>(grad * x * sigmoid);
  }
  Store(gate, i, g);
  Store(up, i, u);
}

}  // namespace

void SwigluForward(const void* gate, const void* up, void* product, int64_t elements, DType type,
                   Stream stream) {
  if (elements == 0) return;
  WithType(type, [&](auto of_type) {
    using T = decltype(of_type);
    const bool packs = Packs<T>(elements, {gate, up, product});
    const int64_t count = packs ? elements / kPack<T> : elements;
    const auto kernel = packs ? Forward<T, kPack<T>> : Forward<T, 1>;
    kernel<<<BlocksOf(count, kThreads), kThreads, 0, stream>>>(
        static_cast<const T*>(gate), static_cast<const T*>(up), static_cast<T*>(product), count);
  });
  CheckLaunch("swiglu forward");
}

void SwigluBackward(const void* grad_product, void* gate, void* up, int64_t elements, DType type,
                    Stream stream) {
  if (elements == 0) return;
  WithType(type, [&](auto of_type) {
    using T = decltype(of_type);
    const bool packs = Packs<T>(elements, {grad_product, gate, up});
    const int64_t count = packs ? elements / kPack<T> : elements;
    const auto kernel = packs ? Backward<T, kPack<T>> : Backward<T, 1>;
    kernel<<<BlocksOf(count, kThreads), kThreads, 0, stream>>>(
        static_cast<const T*>(grad_product), static_cast<T*>(gate), static_cast<T*>(up), count);
  });
  CheckLaunch("swiglu backward");
}

}  // namespace fsdpd::kernels
