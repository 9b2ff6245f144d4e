// Fuzzing harness of an agent without processes, threads and network. Its flow, supervisor, outbox and
// metrics are real; the fuzzer holds the other end of each rank's socket.
#pragma once

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/agent_flow.h"
#include "agent/gpu/node_preflight.h"
#include "agent/link/attachment.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

namespace fsdpd::fuzz {

class NoLogs : public RankLogs {
 public:
  std::string PathOf(const RankId&) const override { return "/nonexistent/rank.log"; }
  std::string DirectoryOf(const AttemptId&) const override { return "/nonexistent"; }
  absl::StatusOr<UniqueFd> OpenForRank(const RankId&) override { return UniqueFd(); }
  void RankEnded(const RankId&) override {}
  void AddNotice(const RankId&, const std::string&) override {}
  std::vector<std::string> Tail(const RankId&, int) const override { return {}; }
};

// The fuzzer's end of a rank.
struct Peer {
  UniqueFd socket, ended;
  std::optional<ProcessEnd> end;
  void End(ProcessEnd how) {
    if (end.has_value()) return;
    end = how;
    socket = UniqueFd();
    FSDPD_CHECK(eventfd_write(ended.get(), 1) == 0);
  }
};

class SocketBody : public RankBody {
 public:
  SocketBody(std::shared_ptr<Peer> peer, UniqueFd socket)
      : peer_(std::move(peer)), socket_(std::move(socket)) {}
  pid_t pid() const override { return 0; }
  int pidfd() const override { return peer_->ended.get(); }
  UniqueFd TakeSocket() override { return std::move(socket_); }
  std::optional<ProcessEnd> Exited() const override { return peer_->end; }
  char state() const override { return 'S'; }
  bool Stopped() const override { return false; }
  void SignalTree(int signal) override { peer_->End({0, signal}); }
  bool TreeGone() override { return peer_->end.has_value(); }
  Evidence WriteEvidence(const std::string&, const std::string&) override { return nullptr; }

 private:
  const std::shared_ptr<Peer> peer_;
  UniqueFd socket_;
};

class AgentCase : public Uplink {
 public:
  AgentCase() {
    TakeLog([](Severity, absl::string_view) {});
    RankSupervisor::Options options;
    options.rank_binary = "/proc/self/exe";
    options.slots = 4;
    options.own_thread = false;
    options.spawn = [this](const RankCommand&) -> absl::StatusOr<std::unique_ptr<RankBody>> {
      int pair[2];
      FSDPD_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
      auto peer = std::make_shared<Peer>();
      peer->socket = UniqueFd(pair[1]);
      peer->ended = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      peers.push_back(peer);
      return std::make_unique<SocketBody>(peer, UniqueFd(pair[0]));
    };
    supervisor = std::make_unique<RankSupervisor>(std::move(options), &logs_, &flow_, &clock);
    preflight_ = std::make_unique<Preflight>(Preflight::Options{v1::DEVICE_CPU, 4}, supervisor.get(), nullptr,
                                             &clock, [this](v1::PreflightResult result) {
                                               v1::AgentMessage message;
                                               *message.mutable_preflight() = std::move(result);
                                               SendLifecycle(std::move(message));
                                             });
    AgentFlow::Parts parts;
    parts.link = this;
    parts.supervisor = supervisor.get();
    parts.metrics = &metrics_;
    parts.preflight = preflight_.get();
    flow_.Connect(parts);
    attachment.Begin(handler().Registration());
  }

  UplinkHandler& handler() { return flow_; }

  // Runs one turn and drains the outbox.
  void Turn(absl::Duration passed = absl::Milliseconds(200)) {
    clock.Advance(passed);
    supervisor->Turn();
    v1::AgentMessage message;
    int64_t ticket = 0;
    for (int i = 0; i < 1000 && attachment.Next(&message, &ticket); ++i) attachment.Written(ticket);
  }
  // Shuts down as an agent does, and collects the metrics.
  void End() {
    supervisor->StopAll(absl::Seconds(1));
    for (int turn = 0; turn < 5; ++turn) Turn(absl::Seconds(1));
    metrics_.Collect();
  }

  void SendLifecycle(v1::AgentMessage message) override {
    attachment.outbox().AddLifecycle(std::move(message));
  }
  void SendSaved(v1::AgentMessage message) override { attachment.outbox().AddSaved(std::move(message)); }
  void SendStep(v1::AgentMessage message) override { attachment.outbox().AddStep(std::move(message)); }
  void SendRendezvous(v1::AgentMessage message) override {
    attachment.outbox().AddRendezvous(std::move(message));
  }
  void ForgetRendezvous(const AttemptId& attempt) override { attachment.outbox().ForgetRendezvous(attempt); }
  std::vector<v1::AgentMessage> Undelivered() override { return attachment.outbox().Undelivered(); }
  bool attached() override { return attachment.welcomed(); }

  FakeClock clock;
  Attachment attachment{&clock};
  std::vector<std::shared_ptr<Peer>> peers;  // In start order of the ranks.
  std::unique_ptr<RankSupervisor> supervisor;

 private:
  static AgentFlow::Options FlowOptions() {
    AgentFlow::Options options;
    options.node = "n";
    options.work_dir = "/nonexistent";
    options.about = [] { return v1::Register(); };
    options.refused = [](const absl::Status&) {};
    return options;
  }

  NoLogs logs_;
  MetricsExporter metrics_{"n", 4, &clock};
  AgentFlow flow_{FlowOptions()};
  std::unique_ptr<Preflight> preflight_;
};

}  // namespace fsdpd::fuzz
