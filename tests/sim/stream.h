// Simulated stream between an agent and the coordinator: two in-order pipes whose ends notice a break
// independently. When a stream breaks, messages in flight are lost from a random one on. The others arrive
// late, possibly after another stream has replaced this one.
#pragma once

#include <absl/status/status.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "coordinator/agents/agent_session.h"
#include "proto/fsdpd/v1/agent.pb.h"
#include "tests/sim/world.h"

namespace fsdpd::sim {

// One direction: actions at the other end, in order.
class Pipe {
 public:
  // `blocked`: the link is cut, or the receiver is suspended. Call Kick() when that may have ended.
  Pipe(World* world, std::function<bool()> blocked) : world_(world), blocked_(std::move(blocked)) {}
  void Push(const std::shared_ptr<void>& owner, std::function<void()> arrives);
  void Kick(const std::shared_ptr<void>& owner);
  void Lose(int keep);  // Drops all but the first `keep` messages.
  int size() const { return static_cast<int>(waiting_.size()); }

 private:
  void Await(const std::shared_ptr<void>& owner);
  void Arrive(const std::shared_ptr<void>& owner);

  World* const world_;
  const std::function<bool()> blocked_;
  std::deque<std::pair<absl::Time, std::function<void()>>> waiting_;
  bool awaited_ = false;
};

// Callbacks to both machines.
struct StreamEnds {
  std::function<bool()> up_blocked, down_blocked;
  // At the agent: a message arrived, or the stream ended.
  std::function<void(const v1::CoordinatorMessage&)> take;
  std::function<void(const absl::Status&)> ended;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(World* world, std::string node, StreamEnds ends);

  // Called by the agent.
  void SendUp(v1::AgentMessage message);
  void CloseByAgent();                                       // Messages in flight still arrive.
  bool read_to_the_end() const { return read_to_the_end_; }  // The coordinator has read everything.

  // Called by one process of the coordinator.
  struct Host {
    AgentSession::Parts parts;
    std::function<void()> changed;  // A message was processed, or the stream has ended there.
    std::function<void(const std::string&node, int64_t stream_generation)> opened, heard;
  };
  void Accept(Host host) { host_ = std::move(host); }
  void Flush();  // Sends the outbox.
  void CloseByCoordinator(const absl::Status& why);
  void CoordinatorDied();  // Messages that were flushed still arrive.
  int64_t stream_generation() const {
    return session_ == nullptr ? 0 : session_->outbox()->stream_generation();
  }
  bool open_at_coordinator() const { return host_.parts.nodes != nullptr; }
  AgentSession* session() { return session_.get(); }

  // Called by the network.
  void Break();
  void Kick();
  const std::string& node() const { return node_; }

 private:
  void Arrived(v1::AgentMessage message);
  void EndAtAgent(const absl::Status& why);
  void EndAtCoordinator();

  World* const world_;
  const std::string node_;
  const StreamEnds ends_;
  Pipe up_, down_;
  bool agent_attached_ = true;
  bool read_to_the_end_ = false;
  Host host_ = {};
  std::unique_ptr<AgentSession> session_;
};

}  // namespace fsdpd::sim
