// Rotary positions on queries and keys, in one pass. The pair (x[i], x[i + half]) of each head turns by the
// angle whose cosine and sine stand in row `position` and column i of the tables, in fp32 and rounded once.
//
// Bytes that must move: each element read and written, and the tables once (they stay in L2).
#pragma once

#include <cstdint>

#include "fsdp/kernels/stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

// Heads of one token, one after the other; `row` elements from one token to the next.
struct HeadRows {
  const void* from;
  int64_t from_row;
  void* to;  // May be `from`.
  int64_t to_row;
  int heads;
};

// By which heads of tokens turn.
struct HeadAngles {
  const float* cos;  // [positions x half]
  const float* sin;
  const int64_t* positions;  // Of each token; null: token t is at t % sequence.
  int64_t tokens;
  int64_t sequence;
  int half;
  DType type;  // Of heads.
};

struct RotaryArgs {
  HeadRows q;
  HeadRows k;
  HeadAngles angles;
};

// `direction` 1 turns forward, -1 back: the inverse, which is also the transpose that gradients need.
void Rotate(const RotaryArgs& args, float direction, Stream stream);

}  // namespace fsdpd::kernels
