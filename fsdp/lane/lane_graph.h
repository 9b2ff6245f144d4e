// LaneGraph: work of several lanes, recorded once and replayed by the device as a CUDA graph. The host makes
// one call per launch, however much work it is.
//
//   RecordGraph -> Launch, any number of times
//
// A launch does the same to the same addresses each time. So inputs that change per launch need fixed
// addresses on the device, and temporary tensors must be allocated from a private pool while recording
// (fsdp/memory/step_pool.h).
//
// Events of recorded lanes order the work inside the graph, and SecondsSince between them measures the launch
// that ended last. They cannot be awaited, and work outside the graph cannot wait for them; record an event
// on the first lane after the launch instead.
//
// Thread safety: as its lanes, which must outlive it. Destroy it only when no launch is running, or after
// Abandon.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "fsdp/lane/lane.h"

namespace fsdpd {

class LaneGraph {
 public:
  virtual ~LaneGraph() = default;

  // Runs as work of the first lane, before its later work. Order with work on other lanes, before and after,
  // must be established with events. `label` is stored to the word of Lane::ShowLaunches when the launch
  // begins.
  virtual void Launch(uint64_t label) = 0;

  // A launch may never end: leaks the graph until the process exits. Communicators of NCCL that it uses are
  // leaked too.
  virtual void Abandon() = 0;
};

// Records the work that `submit` submits to `lanes`, without running it. On failure, of `submit` or because
// something cannot be recorded, the lanes are unchanged. UNIMPLEMENTED unless all lanes are streams.
// REQUIRES: no lane has an error.
absl::StatusOr<std::unique_ptr<LaneGraph>> RecordGraph(const std::vector<Lane*>& lanes,
                                                       const std::function<absl::Status()>& submit);

}  // namespace fsdpd
