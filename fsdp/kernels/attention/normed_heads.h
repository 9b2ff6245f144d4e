// QK-norm fused with rotary embedding: each head of queries and keys is normalized (rms_norm.h, a row is a
// head) and then rotated (rotary.h) in one pass, in fp32, rounded once. The backward also computes the
// gradients of the norm weights: sums over tokens and heads, first into kNormedHeadsBlocks partial sums and
// then over those, in an order that depends only on shapes.
//
// Minimum memory traffic: forward reads and writes each element once; backward reads gradient and input and
// writes the input's gradient.
#pragma once

#include <cstdint>

#include "fsdp/kernels/attention/rotary.h"
#include "fsdp/kernels/current_stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

// The grid size, and the number of rows of `parts`.
constexpr int64_t kNormedHeadsBlocks = 264;

struct NormedHeads {
  HeadRows rows;
  const void* weight;  // [2 half]
  float* rstd;         // [tokens x heads]
};

struct NormedHeadsArgs {
  NormedHeads q;
  NormedHeads k;
  HeadAngles angles;
  double epsilon;
};

struct NormedHeadsGrad {
  HeadRows grad;  // from: gradient of the rotated heads; to: gradient of the norm's input.
  const void* x;  // The norm's input, with the row stride of grad.to; may alias grad.to.
  const void* weight;
  const float* rstd;
  float* parts;       // [kNormedHeadsBlocks x 2 half]: scratch. Null: the weight is frozen.
  void* weight_grad;  // [2 half]
};

struct NormedHeadsBackwardArgs {
  NormedHeadsGrad q;
  NormedHeadsGrad k;
  HeadAngles angles;
  DType weight_grad;
  bool accumulate;  // Add to weight_grad instead of overwriting it.
};

// Whether the kernels support these shapes: each half of a head is whole 16-byte packs, few enough for one
// warp.
bool TakesNormedHeads(const NormedHeadsArgs& args);
bool TakesNormedHeads(const NormedHeadsBackwardArgs& args);

// REQUIRES: TakesNormedHeads().
void NormedHeadsForward(const NormedHeadsArgs& args, Stream stream);
void NormedHeadsBackward(const NormedHeadsBackwardArgs& args, Stream stream);

}  // namespace fsdpd::kernels
