#include <utility>

#include "base/check.h"
#include "fsdp/lane/lane_graph.h"
#include "fsdp/lane/stream_lane.h"

namespace fsdpd {
namespace {

class StreamGraph : public LaneGraph {
 public:
  StreamGraph(cudaGraphExec_t graph, StreamLane* first) : graph_(graph), first_(first) {}
  ~StreamGraph() override {
    if (!abandoned_) cudaGraphExecDestroy(graph_);
  }

  void Launch(uint64_t label) override { first_->Launch(graph_, label); }
  void Abandon() override { abandoned_ = true; }

 private:
  const cudaGraphExec_t graph_;
  StreamLane* const first_;
  bool abandoned_ = false;
};

void Join(const std::vector<StreamLane*>& waiting, const std::vector<StreamLane*>& awaited) {
  for (StreamLane* each : awaited) {
    const LaneEventPtr event = each->Record();
    for (StreamLane* lane : waiting) {
      if (lane != each) lane->Wait(event);
    }
  }
}

// Captures what is submitted on streams that wait for an event of the first lane's stream.
absl::Status Record(const std::vector<StreamLane*>& lanes, const std::function<absl::Status()>& submit) {
  Join(lanes, {lanes.front()});
  for (StreamLane* lane : lanes) lane->SetRecording(true);
  absl::Status status = submit();
  for (StreamLane* lane : lanes) lane->SetRecording(false);
  Join({lanes.front()}, lanes);
  for (StreamLane* lane : lanes) status.Update(lane->TakeError());
  return status;
}

absl::StatusOr<cudaGraphExec_t> Instantiated(cudaGraph_t recorded) {
  cudaGraphExec_t graph = nullptr;
  // Without this flag all nodes would run at the priority of the launching stream.
  const cudaError_t error = cudaGraphInstantiate(&graph, recorded, cudaGraphInstantiateFlagUseNodePriority);
  cudaGraphDestroy(recorded);
  FSDPD_RETURN_IF_ERROR(StatusOfCuda(error, "cudaGraphInstantiate"));
  return graph;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LaneGraph>> RecordGraph(const std::vector<Lane*>& lanes,
                                                       const std::function<absl::Status()>& submit) {
  std::vector<StreamLane*> streams;
  for (Lane* lane : lanes) {
    streams.push_back(dynamic_cast<StreamLane*>(lane));
    if (streams.back() == nullptr)
      return absl::UnimplementedError("CUDA graphs need lanes that are CUDA streams");
  }
  StreamLane* const first = streams.front();
  // Thread-local mode: calls of other threads, such as allocations, do not belong to this graph.
  FSDPD_RETURN_IF_ERROR(StatusOfCuda(
      cudaStreamBeginCapture(first->stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture"));
  absl::Status status = Record(streams, submit);
  cudaGraph_t recorded = nullptr;
  status.Update(StatusOfCuda(cudaStreamEndCapture(first->stream(), &recorded), "cudaStreamEndCapture"));
  if (!status.ok()) {
    if (recorded != nullptr) cudaGraphDestroy(recorded);
    cudaGetLastError();  // Clears the sticky error.
    return status;
  }
  FSDPD_ASSIGN_OR_RETURN(const cudaGraphExec_t graph, Instantiated(recorded));
  return std::make_unique<StreamGraph>(graph, first);
}

}  // namespace fsdpd
