// Cross-entropy of rows of logits: the loss in one pass over them, and their gradient in place in another.
// Everything is in fp32; a row whose target is kNoTarget loses nothing and has a gradient of zero.
//
// Bytes that must move: the logits once forward, twice backward.
#pragma once

#include <cstdint>

#include "fsdp/kernels/stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

constexpr int64_t kNoTarget = -100;

struct CrossEntropyArgs {
  void* logits;            // [rows x vocabulary]
  const int64_t* targets;  // [rows]
  float* log_sum_exp;      // [rows]
  int64_t rows;
  int64_t vocabulary;
  DType type;
};

// Writes log_sum_exp and each row's loss.
void CrossEntropyForward(const CrossEntropyArgs& args, float* losses, Stream stream);

// Overwrites the logits with (softmax - one at the target) * *scale.
void CrossEntropyBackward(const CrossEntropyArgs& args, const float* scale, Stream stream);

}  // namespace fsdpd::kernels
