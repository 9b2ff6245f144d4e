// Cross-entropy over rows of logits: one pass computes the loss, a second one overwrites the logits with
// their gradient. All arithmetic is in fp32. A row whose target is kNoTarget has a loss and a gradient of
// zero (PyTorch's ignore_index).
//
// Minimum memory traffic: the logits once in forward, twice in backward.
#pragma once

#include <cstdint>

#include "fsdp/kernels/current_stream.h"
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

// Writes log_sum_exp and the loss of each row.
void CrossEntropyForward(const CrossEntropyArgs& args, float* losses, Stream stream);

// Overwrites the logits with (softmax - onehot(target)) * *scale.
void CrossEntropyBackward(const CrossEntropyArgs& args, const float* scale, Stream stream);

}  // namespace fsdpd::kernels
