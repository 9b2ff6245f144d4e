// Merge of attention over two sets of keys into attention over their union. Outputs are weighted by their
// share of the softmax denominator (l is the log-sum-exp):
//
//   l = log(e^l1 + e^l2),  out = e^(l1 - l) out1 + e^(l2 - l) out2
//
// in fp32, rounded once.
//
// Minimum memory traffic for outputs of n elements of c bytes, and r rows: 3 c n + 12 r bytes.
#pragma once

#include <cstdint>

#include "fsdp/kernels/current_stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

struct JoinAttentionArgs {
  const void* first;  // [samples x tokens x heads x head_size], like second.
  const void* second;
  const float* first_log_sum_exp;  // [samples x heads x tokens], like second_log_sum_exp.
  const float* second_log_sum_exp;
  void* out;           // Like first, but samples are `out_stride` elements apart.
  float* log_sum_exp;  // Like first_log_sum_exp; must not overlap either input.
  int64_t samples;
  int64_t tokens;
  int64_t heads;
  int64_t head_size;
  int64_t out_stride;
  DType type;
};

void JoinAttention(const JoinAttentionArgs& args, Stream stream);

}  // namespace fsdpd::kernels
