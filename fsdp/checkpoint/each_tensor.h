// The same work for each of many tensors, on several threads.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <functional>

namespace fsdpd {

// work(0) ... work(count - 1), begun in order. The first error ends it when what was begun has returned, and
// is returned. `stopped` is asked before each: CANCELLED. REQUIRES: threads > 0.
absl::Status ForEachTensor(size_t count, int threads, const std::function<bool()>& stopped,
                           const std::function<absl::Status(size_t)>& work);

}  // namespace fsdpd
