#include "fsdp/plan/spec/global_batch.h"

#include <algorithm>
#include <limits>

#include "fsdp/plan/spec/defaults.h"

namespace fsdpd {
namespace {

int64_t SaturatedProduct(int64_t a, int64_t b) {
  int64_t product = 0;
  if (!__builtin_mul_overflow(a, b, &product)) return product;
  return (a < 0) == (b < 0) ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();
}

}  // namespace

int64_t GlobalBatchOf(const v1::JobSpec& job) {
  const v1::JobSpec filled = WithDefaults(job, nullptr);
  if (filled.train().has_global_batch()) return filled.train().global_batch();
  const v1::Parallel& parallel = filled.parallel();
  const int64_t world = SaturatedProduct(filled.resources().nodes(), filled.resources().ranks_per_node());
  const int64_t sharing =
      SaturatedProduct(SaturatedProduct(parallel.pipeline(), parallel.context()), parallel.tensor());
  return SaturatedProduct(filled.train().micro_batch(),
                          std::max<int64_t>(world / std::max<int64_t>(sharing, 1), 1));
}

}  // namespace fsdpd
