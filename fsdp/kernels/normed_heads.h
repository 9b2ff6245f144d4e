// Heads of queries and keys, each normed (rms_norm.h, a row is a head) and then turned (rotary.h), in one
// pass: in fp32 and rounded once. And its backward, with the weights' gradients: sums over tokens and heads,
// first in kNormedHeadsBlocks parts and then over those, in an order that shapes alone decide.
//
// Bytes that must move: forward each element read and written; backward gradient and input read, and the
// input's gradient written.
#pragma once

#include <cstdint>

#include "fsdp/kernels/rotary.h"
#include "fsdp/kernels/stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

// Also the number of rows that `parts` needs.
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
  HeadRows grad;  // From that of the turned heads to that of what was normed,
  const void* x;  // which is this, with a token's row as grad.to has it; may be grad.to.
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
  bool accumulate;  // Whether weights' gradients are added to what is there or replace it.
};

// Whether the kernels take these: whole 16-byte packs in each half of a head, few enough for a warp.
bool TakesNormedHeads(const NormedHeadsArgs& args);
bool TakesNormedHeads(const NormedHeadsBackwardArgs& args);

// REQUIRES: TakesNormedHeads().
void NormedHeadsForward(const NormedHeadsArgs& args, Stream stream);
void NormedHeadsBackward(const NormedHeadsBackwardArgs& args, Stream stream);

}  // namespace fsdpd::kernels
