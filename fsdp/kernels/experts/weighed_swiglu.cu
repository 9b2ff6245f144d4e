#include <algorithm>

#include "fsdp/kernels/experts/weighed_swiglu.h"
#include "fsdp/kernels/pack.cuh"
#include "fsdp/kernels/swiglu.cuh"

namespace fsdpd::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// One block per row; its threads take packs cyclically.
template <typename T, int N>
__global__ void Forward(WeighedSwigluArgs args, int64_t packs) {
  const T* const gate_up = static_cast<const T*>(args.gate_up);
  const int64_t row = blockIdx.x;
  if (args.used != nullptr && row >= *args.used) return;
  const float weight = args.weights[row];
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    const auto g = Load<T, N>(gate_up, 2 * row * packs + i),
               u = Load<T, N>(gate_up, (2 * row + 1) * packs + i);
    Pack<T, N> out;
    for (int k = 0; k < N; ++k) {
      const float x = Wide(g.at[k]);
      out.at[k] = Narrow<T>(x * Sigmoid(x) * Wide(u.at[k]) * weight);
    }
    Store(static_cast<T*>(args.product), row * packs + i, out);
  }
}

// silu'(x) = s (1 + x (1 - s)), s = sigmoid(x).
template <typename T, int N>
__global__ void Backward(WeighedSwigluArgs args, int64_t packs) {
  __shared__ float of_warp[kWarps];
  T* const gate_up = static_cast<T*>(args.gate_up);
  T* const product = static_cast<T*>(args.product);
  const int64_t row = blockIdx.x;
  if (args.used != nullptr && row >= *args.used) return;
  const float weight = args.weights[row];
  float grad_weight = 0;
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    const int64_t gate = 2 * row * packs + i, up = gate + packs;
    auto d = Load<T, N>(product, row * packs + i), g = Load<T, N>(gate_up, gate), u = Load<T, N>(gate_up, up);
    for (int k = 0; k < N; ++k) {
      const float x = Wide(g.at[k]), y = Wide(u.at[k]), grad = Wide(d.at[k]), sigmoid = Sigmoid(x);
      const float plain = x * sigmoid * y;
      grad_weight += grad * plain;
      d.at[k] = Narrow<T>(plain * weight);
      g.at[k] = Narrow<T>(grad * weight * y * sigmoid * (1.0f + x * (1.0f - sigmoid)));
      u.at[k] = Narrow<T>(grad * weight * x * sigmoid);
    }
    Store(product, row * packs + i, d);
    Store(gate_up, gate, g);
    Store(gate_up, up, u);
  }
  grad_weight = WarpSum(grad_weight);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = grad_weight;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) grad_weight += of_warp[warp];
  args.grad_weights[row] = grad_weight;
}

template <typename Kernel>
void Launch(Kernel kernel, const WeighedSwigluArgs& args, int64_t packs, Stream stream) {
  const auto threads = static_cast<unsigned>(std::min<int64_t>(kThreads, (packs + 31) / 32 * 32));
  kernel<<<static_cast<unsigned>(args.rows), threads, 0, stream>>>(args, packs);
}

}  // namespace

void WeighedSwigluForward(const WeighedSwigluArgs& args, Stream stream) {
  if (args.rows == 0 || args.width == 0) return;
  WithType(args.type, [&](auto of_type) {
    using T = decltype(of_type);
    const bool whole = Packs<T>(args.width, {args.gate_up, args.product});
    Launch(whole ? Forward<T, kPack<T>> : Forward<T, 1>, args, whole ? args.width / kPack<T> : args.width,
           stream);
  });
  CheckLaunch("weighed swiglu forward");
}

void WeighedSwigluBackward(const WeighedSwigluArgs& args, Stream stream) {
  if (args.rows == 0 || args.width == 0) return;
  WithType(args.type, [&](auto of_type) {
    using T = decltype(of_type);
    const bool whole = Packs<T>(args.width, {args.gate_up, args.product});
    Launch(whole ? Backward<T, kPack<T>> : Backward<T, 1>, args, whole ? args.width / kPack<T> : args.width,
           stream);
  });
  CheckLaunch("weighed swiglu backward");
}

}  // namespace fsdpd::kernels
