// The local half of a reduce-scatter with a narrow wire: adds the parts that ranks sent, in rank order and in
// fp32. Bytes that must move for `ranks` parts of n numbers of c bytes: ranks n c + 4 n.
#pragma once

#include <cstdint>

#include "fsdp/kernels/stream.h"
#include "fsdp/plan/spec/dtype.h"

namespace fsdpd::kernels {

// parts: [ranks x count], one after the other; sum: [count].
void SumParts(const void* parts, int ranks, int64_t count, DType type, float* sum, Stream stream);

}  // namespace fsdpd::kernels
