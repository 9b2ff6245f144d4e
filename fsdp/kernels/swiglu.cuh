// SwiGLU of single numbers, computed as swiglu.h describes, for kernels that fuse it with other work.
#pragma once

#include "fsdp/kernels/pack.cuh"

namespace fsdpd::kernels {

// Uses two hardware approximations, accurate to a few units in the last place of fp32, while bf16 keeps 8 of
// its 24 bits. Exact exponentials and divisions would take longer than the rest of SwiGLU.
__device__ inline float Sigmoid(float x) {
  constexpr float kLog2OfE = 1.44269504f;
  float power, sigmoid;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(-kLog2OfE * x));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(sigmoid) : "f"(1.0f + power));
  return sigmoid;
}

__device__ inline float SwigluOf(float gate, float up) { return gate * Sigmoid(gate) * up; }

struct SwigluMade {
  float product, gate, up;  // product, and the gradients of gate and up.
};

// silu'(x) = s + x s (1 - s), s = sigmoid(x).
__device__ inline SwigluMade SwigluBackwardOf(float grad_product, float gate, float up) {
  const float sigmoid = Sigmoid(gate), silu = gate * sigmoid;
  return {silu * up, grad_product * up * (sigmoid + silu * (1.0f - sigmoid)), grad_product * silu};
}

}  // namespace fsdpd::kernels
