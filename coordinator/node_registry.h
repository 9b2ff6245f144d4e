// The agents that the coordinator knows: who they are, whether their stream is up, when they were last heard.
//
// A stream gets an epoch when it attaches. Epochs grow over streams and over lives of the coordinator (the
// store's generation is their upper half), so a message of an earlier stream is never taken for one of the
// present. A second agent of a name whose stream is up is refused; the same agent (same `instance`) that
// reconnects replaces its stream. Whose lease has expired (agent_lease.h) has no stream, and is lost: it is
// shown for a day, in which somebody may miss it, also by the next life of the coordinator, and then
// forgotten, as an agent's name may never come back.
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
#include "coordinator/agent_lease.h"
#include "coordinator/stream_outbox.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

constexpr size_t kMaxUnconfirmedJobs = 16;  // Of a node, unless more of them have not ended.

// Names kept, connected or not: twice the agents that a coordinator is sized for (kMaxWorld in
// base/limits.h), as nodes are renamed or replaced.
constexpr size_t kMaxNodes = 4096;

// A text of a registration, kept and listed of each node: `fsdpctl nodes` of all agents stays below
// kMaxRpcBytes.
constexpr size_t kMaxRegisterText = 256;

// A lost node with unconfirmed ranks of a job that has not ended is kept beyond both.
constexpr absl::Duration kLostNodeKept = absl::Hours(24);
// The longest lost ones go first: the names of a cluster whose nodes are new each time leave room for the
// others.
constexpr size_t kMaxLostNodes = 1024;

struct NodeView {
  v1::Register info;
  std::string address;
  bool connected = false;
  int64_t epoch = 0;
  absl::Time last_seen;  // By Clock::Now().
  int free_slots = 0;
  bool left = false;                          // It ended its stream in order, and has no other.
  bool awaited = false;                       // It has none, did not leave, and is not lost yet.
  std::vector<std::string> unconfirmed_jobs;  // Node.unconfirmed_jobs.
  std::string revoked_serial;                 // Node.revoked_serial.
};

class NodeRegistry {
 public:
  using HasEnded = absl::FunctionRef<bool(const std::string& job)>;

  // `generation`: StateStore::generation().
  NodeRegistry(int64_t generation, Clock* clock) : generation_(generation), clock_(clock) {}

  // A new stream, whose outbox already holds Welcome. `end_stream` ends it from any thread. ALREADY_EXISTS
  // for a second live agent of the name, INVALID_ARGUMENT for a registration that makes no sense,
  // RESOURCE_EXHAUSTED over kMaxNodes.
  absl::StatusOr<std::shared_ptr<StreamOutbox>> Attach(const v1::Register& info, const std::string& address,
                                                       std::function<void()> end_stream);
  // The stream ended; `left`: by the agent, in order, which may be told later. False, and no effect, when
  // another one has replaced it.
  bool Detach(const std::string& node, int64_t epoch, bool left = false);
  // One that an earlier life of the coordinator knew; no effect where it has registered since.
  void Restore(const NodeView& view);
  void Touch(const std::string& node, int64_t epoch);
  // Ends streams whose lease has expired. Nobody is awaited for longer.
  void EndSilentStreams(const AgentLease& lease);
  // The names of those that are not known any more.
  std::vector<std::string> ForgetLost(const AgentLease& lease, HasEnded has_ended);

  // False, and no effect, where its agent has a stream.
  bool Forget(const std::string& node);

  // False when the node has no stream, or, unless `epoch` is 0, another one.
  bool Send(const std::string& node, v1::CoordinatorMessage message, int64_t epoch = 0);
  // Whether its agent, connected, said Register.log_windows.
  bool KnowsLogWindows(const std::string& node) const;
  bool AcknowledgesLaunches(const std::string& node) const;  // Likewise, Register.acknowledges_launches.
  // The node is lost with ranks of the job, which may still run. Until its agent registers.
  void AddUnconfirmed(const std::string& node, const std::string& job, HasEnded has_ended);
  // A stream of the node was ended (`epoch`), or refused (0), because its certificate is revoked. No effect
  // where the agent has another stream: somebody else has the revoked certificate.
  void SetRevoked(const std::string& node, int64_t epoch, const std::string& serial);
  void SetFreeSlots(const std::map<std::string, int>& free_slots);

  std::vector<NodeView> Snapshot() const;  // By name.
  // Makes `views` what is known now. Who asks ten times a second of thousands of nodes keeps it, as what it
  // holds of a stream that is still the same is not copied again.
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
