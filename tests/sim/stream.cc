#include "tests/sim/stream.h"

#include <utility>

namespace fsdpd::sim {

void Pipe::Push(const std::shared_ptr<void>& owner, std::function<void()> arrives) {
  // Usually short; sometimes as long as a TCP retransmission.
  const absl::Duration most = world_->dice.OneIn(30) ? absl::Seconds(2) : absl::Milliseconds(20);
  waiting_.emplace_back(world_->now() + world_->dice.Between(absl::Milliseconds(1), most),
                        std::move(arrives));
  Await(owner);
}

void Pipe::Await(const std::shared_ptr<void>& owner) {
  if (awaited_ || waiting_.empty() || blocked_()) return;
  awaited_ = true;
  world_->After(
      waiting_.front().first - world_->now(), owner,
      std::function<void(void*)>([this, weak = std::weak_ptr<void>(owner)](void*) { Arrive(weak.lock()); }));
}

void Pipe::Arrive(const std::shared_ptr<void>& owner) {
  awaited_ = false;
  if (waiting_.empty() || blocked_()) return;
  const std::function<void()> arrives = std::move(waiting_.front().second);
  waiting_.pop_front();
  arrives();
  Await(owner);
}

void Pipe::Kick(const std::shared_ptr<void>& owner) { Await(owner); }

void Pipe::Lose(int keep) {
  while (size() > keep) waiting_.pop_back();
}

Stream::Stream(World* world, std::string node, StreamEnds ends)
    : world_(world),
      node_(std::move(node)),
      ends_(std::move(ends)),
      up_(world, ends_.up_blocked),
      down_(world, ends_.down_blocked) {}

void Stream::SendUp(v1::AgentMessage message) {
  up_.Push(shared_from_this(), [this, message = std::move(message)] { Arrived(message); });
}

void Stream::CloseByAgent() {
  if (!std::exchange(agent_attached_, false)) return;
  down_.Lose(0);
  up_.Push(shared_from_this(), [this] {
    read_to_the_end_ = open_at_coordinator();
    EndAtCoordinator();
  });
}

void Stream::Arrived(v1::AgentMessage message) {
  if (!open_at_coordinator()) return;
  const std::shared_ptr<Stream> self = shared_from_this();
  absl::Status status;
  if (session_ == nullptr) {
    auto opened =
        AgentSession::Open(host_.parts, message, "simulated", [weak = weak_from_this(), world = world_] {
          const std::shared_ptr<Stream> stream = weak.lock();
          if (stream == nullptr) return;
          world->After(world->dice.Between(absl::ZeroDuration(), absl::Milliseconds(50)), stream,
                       std::function<void(Stream*)>([](Stream* each) {
                         each->CloseByCoordinator(absl::CancelledError("cancelled"));
                       }));
        });
    status = opened.status();
    if (opened.ok()) {
      session_ = *std::move(opened);
      host_.opened(node_, stream_generation());
    }
  } else {
    const int64_t generation = message.stream_generation();
    status = session_->Take(&message);
    if (status.ok()) host_.heard(node_, stream_generation());
    if (status.ok() && generation != stream_generation())
      world_->ReportViolation(absl::StrCat("stream: accepted a message of generation ", generation, " (want ",
                                           stream_generation(), ")"));
  }
  if (!status.ok()) return CloseByCoordinator(status);
  host_.changed();
}

void Stream::Flush() {
  v1::CoordinatorMessage message;
  while (session_ != nullptr && session_->outbox()->TryPop(&message)) {
    down_.Push(shared_from_this(), [this, message] {
      if (agent_attached_) ends_.take(message);
    });
  }
}

void Stream::EndAtCoordinator() {
  if (!open_at_coordinator()) return;
  const std::function<void()> changed = host_.changed;
  if (session_ != nullptr) {
    session_->outbox()->Release();
    session_->Close();
  }
  session_ = nullptr;
  host_ = {};
  changed();
}

void Stream::CloseByCoordinator(const absl::Status& why) {
  if (!open_at_coordinator()) return;
  const std::shared_ptr<Stream> self = shared_from_this();
  world_->Log("stream ended by the coordinator node=", node_,
              " status=", absl::StatusCodeToString(why.code()));
  EndAtCoordinator();
  down_.Push(self, [this, why] { EndAtAgent(why); });
}

void Stream::CoordinatorDied() {
  if (session_ != nullptr) session_->outbox()->Release();
  session_ = nullptr;
  host_ = {};
  down_.Push(shared_from_this(), [this] { EndAtAgent(absl::UnavailableError("coordinator died")); });
}

void Stream::EndAtAgent(const absl::Status& why) {
  if (std::exchange(agent_attached_, false)) ends_.ended(why);
}

void Stream::Break() {
  const std::shared_ptr<Stream> self = shared_from_this();
  up_.Lose(world_->dice.Below(up_.size() + 1));
  down_.Lose(world_->dice.Below(down_.size() + 1));
  up_.Push(self, [this] { EndAtCoordinator(); });
  down_.Push(self, [this] { EndAtAgent(absl::UnavailableError("connection broken")); });
}

void Stream::Kick() {
  up_.Kick(shared_from_this());
  down_.Kick(shared_from_this());
}

}  // namespace fsdpd::sim
