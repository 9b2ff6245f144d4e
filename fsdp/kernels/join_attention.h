// Attention over two sets of keys from the attention over each: outputs weighted by their shares of the sum,
// and its logarithm,
//
//   l = log(e^l1 + e^l2),  out = e^(l1 - l) out1 + e^(l2 - l) out2
//
// in fp32 and rounded once.
//
// Bytes that must move for outputs of n numbers of c bytes, and r rows: 3 c n + 12 r.
#pragma once

#include <cstdint>

#include "fsdp/kernels/stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

struct JoinAttentionArgs {
  const void* first;  // [samples x tokens x heads x head_size], as second.
  const void* second;
  const float* first_log_sum_exp;  // [samples x heads x tokens], as second's.
  const float* second_log_sum_exp;
  void* out;           // As first, but samples lie `out_stride` numbers apart.
  float* log_sum_exp;  // As first's; overlaps neither.
  int64_t samples;
  int64_t tokens;
  int64_t heads;
  int64_t head_size;
  int64_t out_stride;
  DType type;
};

void JoinAttention(const JoinAttentionArgs& args, Stream stream);

}  // namespace fsdpd::kernels
