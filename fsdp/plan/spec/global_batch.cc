#include "fsdp/plan/spec/global_batch.h"

#include <algorithm>

#include "fsdp/plan/spec/defaults.h"

namespace fsdpd {

int64_t GlobalBatchOf(const v1::JobSpec& job) {
  const v1::JobSpec filled = WithDefaults(job, nullptr);
  if (filled.train().has_global_batch()) return filled.train().global_batch();
  const v1::Parallel& parallel = filled.parallel();
  const int64_t world = filled.resources().nodes() * filled.resources().ranks_per_node();
  const int64_t sharing = parallel.pipeline() * parallel.context() * parallel.tensor();
  return filled.train().micro_batch() * std::max<int64_t>(world / std::max<int64_t>(sharing, 1), 1);
}

}  // namespace fsdpd
