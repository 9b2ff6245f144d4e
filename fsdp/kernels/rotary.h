// Rotary positions on queries and keys, in place, in one pass. The pair (x[i], x[i + half]) of each head
// turns by the angle whose cosine and sine stand in row `position` and column i of the tables, in fp32 and
// rounded once; token t of the batch is at position t % sequence.
//
// Bytes that must move: each element read and written, and the tables once (they stay in L2).
#pragma once

#include <cstdint>

#include "fsdp/kernels/stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

struct RotaryArgs {
  void* q;           // [tokens x heads x 2 half]
  void* k;           // [tokens x kv_heads x 2 half]
  const float* cos;  // [sequence x half]
  const float* sin;
  int64_t tokens;
  int64_t sequence;
  int heads;
  int kv_heads;
  int half;
  DType type;
};

// `direction` 1 turns forward, -1 back: the inverse, which is also the transpose that gradients need.
void Rotate(const RotaryArgs& args, float direction, Stream stream);

}  // namespace fsdpd::kernels
