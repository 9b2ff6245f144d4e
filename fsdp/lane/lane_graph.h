// What was submitted to lanes once, as one thing that the device does again by itself: a CUDA graph over
// their streams. The host's part in it is one call, however much work it is.
//
//   RecordGraph -> Launch, as often as wanted
//
// It does the same to the same addresses each time: what changes from launch to launch has a fixed place on
// the device, and tensors that come and go while it is recorded come from memory that nobody else is given
// (fsdp/memory/step_pool.h).
//
// Marks of lanes that were recorded order the work in the graph, and SecondsSince among them measures the
// launch that ended last; nobody awaits them, and work outside does not wait for them, but for a mark of the
// first lane after the launch.
//
// Thread safety: that of its lanes, which outlive it. Destroyed when no launch is under way, or abandoned.
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

  // As work of the first lane, whose later work comes after it. What the others had submitted before, and
  // what they do after it, is ordered by marks, as everything is. `label` goes to the word of
  // Lane::ShowLaunches as it begins.
  virtual void Launch(uint64_t label) = 0;

  // A launch may never end: the graph stays for as long as the process. NCCL's communicators that it uses are
  // not given back either.
  virtual void Abandon() = 0;
};

// Records what `submit` submits to `lanes`; nothing of it runs. When it fails, by `submit` or by what a graph
// cannot hold, the lanes are as they were. UNIMPLEMENTED for lanes that are no streams. REQUIRES: no lane has
// an error.
absl::StatusOr<std::unique_ptr<LaneGraph>> RecordGraph(const std::vector<Lane*>& lanes,
                                                       const std::function<absl::Status()>& submit);

}  // namespace fsdpd
