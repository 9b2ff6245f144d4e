// An agent's stream on a simulated network, with its coordinator's end: two pipes in which nothing overtakes,
// and whose ends notice a break each in their own time. What was under way when it broke is lost from some
// message on; what was not lost still arrives, as late as it may, also when another stream has taken this
// one's place.
#pragma once

#include <absl/status/status.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "coordinator/agent_session.h"
#include "proto/fsdpd/v1/agent.pb.h"
#include "tests/sim/world.h"

namespace fsdpd::sim {

// One direction: what is to happen at the other end, in order.
class Pipe {
 public:
  // `blocked`: the link is cut, or who is to take it stands still; Kick() when that may be over.
  Pipe(World* world, std::function<bool()> blocked) : world_(world), blocked_(std::move(blocked)) {}
  void Push(const std::shared_ptr<void>& owner, std::function<void()> arrives);
  void Kick(const std::shared_ptr<void>& owner);
  void Lose(int kept);  // All but the first ones.
  int size() const { return static_cast<int>(waiting_.size()); }

 private:
  void Await(const std::shared_ptr<void>& owner);
  void Arrive(const std::shared_ptr<void>& owner);

  World* const world_;
  const std::function<bool()> blocked_;
  std::deque<std::pair<absl::Time, std::function<void()>>> waiting_;
  bool awaited_ = false;
};

// What a stream needs of both machines.
struct StreamEnds {
  std::function<bool()> up_blocked, down_blocked;
  // The agent's: a message, and the end.
  std::function<void(const v1::CoordinatorMessage&)> take;
  std::function<void(const absl::Status&)> ended;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(World* world, std::string node, StreamEnds ends);

  // The agent's end.
  void SayUp(v1::AgentMessage message);
  void CloseByAgent();                                       // What it has said arrives still.
  bool read_to_the_end() const { return read_to_the_end_; }  // By the coordinator, since then.

  // The coordinator's end, of one of its lives.
  struct Host {
    AgentSession::Parts parts;
    std::function<void()> changed;  // It has taken something, or this stream has ended there.
    std::function<void(const std::string&node, int64_t epoch)> opened, heard;
  };
  void Accept(Host host) { host_ = std::move(host); }
  void Flush();  // What waits in the outbox goes on its way.
  void CloseByCoordinator(const absl::Status& why);
  void CoordinatorDied();  // Without another word; what it had flushed arrives.
  int64_t epoch() const { return session_ == nullptr ? 0 : session_->outbox()->epoch(); }
  bool open_there() const { return host_.parts.nodes != nullptr; }
  AgentSession* session() { return session_.get(); }

  // The network's.
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
  bool agent_there_ = true;
  bool read_to_the_end_ = false;
  Host host_ = {};
  std::unique_ptr<AgentSession> session_;
};

}  // namespace fsdpd::sim
