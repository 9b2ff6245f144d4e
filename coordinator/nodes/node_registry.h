// Registry of agents: their registration, their stream and when they were last heard from.
//
// Each stream gets a generation when it attaches. Generations increase across streams and across restarts of
// the coordinator, because the store's generation is their upper half. So a message of an earlier stream is
// never attributed to the current one. A second agent with the name of a connected node is rejected; if the
// same agent (same `instance`) reconnects, its new stream replaces the old one. An agent whose lease expired
// (agent_lease.h) has no stream and is lost. A lost node is listed for kLostNodeRetention and then forgotten.
//
// Thread-safe.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "coordinator/nodes/agent_lease.h"
#include "coordinator/nodes/stream_outbox.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

constexpr size_t kMaxUnconfirmedJobs = 16;  // Per node, unless more unconfirmed jobs have not ended.

// Retained names, connected or not: twice kMaxWorld, because nodes are renamed and replaced.
constexpr size_t kMaxNodes = 4096;

// Limit of each registration text. It keeps `fsdpctl nodes` for all agents below kMaxRpcBytes.
constexpr size_t kMaxRegisterText = 256;

// A lost node with unconfirmed ranks of a job that has not ended is retained beyond both limits.
constexpr absl::Duration kLostNodeRetention = absl::Hours(24);
// The nodes that were lost first are dropped first. Matters if node names are always new.
constexpr size_t kMaxLostNodes = 1024;

struct NodeView {
  v1::Register info;
  std::string address;
  bool connected = false;
  int64_t stream_generation = 0;
  absl::Time last_seen;  // By Clock::Now().
  int free_slots = 0;
  bool left = false;                          // The agent closed its stream cleanly and has not reconnected.
  bool awaited = false;                       // No stream, did not leave, and is not lost yet.
  std::vector<std::string> unconfirmed_jobs;  // Node.unconfirmed_jobs.
  std::string revoked_serial;                 // Node.revoked_serial.
};

class NodeRegistry {
 public:
  using HasEnded = absl::FunctionRef<bool(const std::string& job)>;

  // `generation`: StateStore::generation().
  NodeRegistry(int64_t generation, Clock* clock) : generation_(generation), clock_(clock) {}

  // Registers a new stream, whose outbox already holds Welcome. `end_stream` ends it from any thread. Errors:
  // ALREADY_EXISTS if another agent with this name is connected, INVALID_ARGUMENT for an invalid
  // registration, RESOURCE_EXHAUSTED over kMaxNodes.
  absl::StatusOr<std::shared_ptr<StreamOutbox>> Attach(const v1::Register& info, const std::string& address,
                                                       std::function<void()> end_stream);
  // The stream ended. `left`: the agent closed it cleanly, which may be reported later. Returns false,
  // without effect, if another stream has replaced it.
  bool Detach(const std::string& node, int64_t stream_generation, bool left = false);
  // Restores a node from the store. Has no effect if it has registered since.
  void Restore(const NodeView& view);
  void Touch(const std::string& node, int64_t stream_generation);
  // Ends streams whose lease has expired; those agents are no longer awaited.
  void EndSilentStreams(const AgentLease& lease);
  // Returns the names of the forgotten nodes.
  std::vector<std::string> ForgetLost(const AgentLease& lease, HasEnded has_ended);

  // Returns false, without effect, if the agent is connected.
  bool Forget(const std::string& node);

  // Returns false if the node is not connected or, unless `stream_generation` is 0, has another stream.
  bool Send(const std::string& node, v1::CoordinatorMessage message, int64_t stream_generation = 0);
  // Whether the connected agent set Register.log_windows.
  bool HasLogWindows(const std::string& node) const;
  bool AcknowledgesLaunches(const std::string& node) const;  // Likewise, Register.acknowledges_launches.
  // The node was lost with ranks of the job that may still run. Reset when its agent registers.
  void AddUnconfirmed(const std::string& node, const std::string& job, HasEnded has_ended);
  // A stream of the node was ended (`stream_generation`) or rejected (0) because its certificate is revoked.
  // Has no effect if the agent is connected by another stream: then another agent has the revoked
  // certificate.
  void SetRevoked(const std::string& node, int64_t stream_generation, const std::string& serial);
  void SetFreeSlots(const std::map<std::string, int>& free_slots);

  std::vector<NodeView> Snapshot() const;  // By name.
  // Updates `views` to the current state. A caller that polls often should reuse `views`: the registrations
  // of unchanged streams are not copied again.
  void ReadInto(std::map<std::string, NodeView>* views) const;

 private:
  struct Node {
    NodeView view;
    std::shared_ptr<StreamOutbox> outbox;  // Null when not connected.
  };

  absl::Status CheckAdmissible(const v1::Register& info) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t generation_;
  Clock* const clock_;
  mutable Mutex mutex_;
  int64_t streams_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Node> nodes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
