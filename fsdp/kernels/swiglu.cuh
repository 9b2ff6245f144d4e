// SwiGLU of numbers, as swiglu.h says it is computed, for kernels that do more with it.
#pragma once

#include "fsdp/kernels/pack.cuh"

namespace fsdpd::kernels {

// By the two approximations that the hardware has, to a few units in the last place of fp32: bf16 keeps the
// first 8 bits of 24. Divisions and powers that are exact take longer than all else that SwiGLU is made of.
__device__ inline float Sigmoid(float x) {
  constexpr float kLog2OfE = 1.44269504f;
  float power, sigmoid;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(-kLog2OfE * x));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(sigmoid) : "f"(1.0f + power));
  return sigmoid;
}

__device__ inline float SwigluOf(float gate, float up) { return gate * Sigmoid(gate) * up; }

struct SwigluMade {
  float product, gate, up;  // Of gate and up the gradients.
};

// silu'(x) = s + x s (1 - s), s = sigmoid(x).
__device__ inline SwigluMade SwigluBackwardOf(float grad_product, float gate, float up) {
  const float sigmoid = Sigmoid(gate), silu = gate * sigmoid;
  return {silu * up, grad_product * up * (sigmoid + silu * (1.0f - sigmoid)), grad_product * silu};
}

}  // namespace fsdpd::kernels
