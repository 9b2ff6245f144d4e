// Rotary position embedding of queries and keys, in one pass. The pair (x[i], x[i + half]) of each head is
// rotated by the angle whose cosine and sine are at row `position`, column i of the tables; in fp32, rounded
// once.
//
// Minimum memory traffic: each element read and written once, and the tables once (they stay in L2).
#pragma once

#include <cstdint>

#include "fsdp/kernels/current_stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

// The heads of each token are contiguous; tokens are `from_row` (or `to_row`) elements apart.
struct HeadRows {
  const void* from;
  int64_t from_row;
  void* to;  // May alias `from`.
  int64_t to_row;
  int heads;
};

// Rotation angles of the heads of each token.
struct HeadAngles {
  const float* cos;  // [positions x half]
  const float* sin;
  const int64_t* positions;  // Position of each token; null: token t is at position t % sequence.
  int64_t tokens;
  int64_t sequence;
  int half;
  DType type;  // Element type of the heads.
};

struct RotaryArgs {
  HeadRows q;
  HeadRows k;
  HeadAngles angles;
};

// `direction` 1 rotates forward; -1 rotates back, which is the inverse and also the transpose that backward
// needs.
void Rotate(const RotaryArgs& args, float direction, Stream stream);

}  // namespace fsdpd::kernels
