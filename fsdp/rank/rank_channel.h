// A rank's connection to its agent: the socket that it inherits as descriptor 3. Reads the launch message,
// sends reports, and implements the rank's rendezvous store, which the agent relays to the coordinator.
//
// Call order: ReadLaunch once, then StartReading once, then anything. Callbacks run on the reader's thread:
// `on_lost` if the agent closes its end or sends an invalid message (a rank must not outlive its agent, so
// the program exits immediately); `on_peer_failed` if another rank has failed; `on_leave` if the agent orders
// the rank to leave; `on_trace` if steps are to be traced. None is called after Close().
//
// A Get that times out leaves its request open, and the next Get of that key waits for the same request, so
// polling does not load the agent.
//
// Thread safety: Set, Get and Send are thread-safe. Errors: UNAVAILABLE if the agent is gone,
// DEADLINE_EXCEEDED from Get.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <map>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "fsdp/comm/store.h"
#include "proto/fsdpd/v1/rank.pb.h"

namespace fsdpd {

class RankChannel : public Store {
 public:
  explicit RankChannel(int fd) : fd_(fd) {}  // Takes ownership of the descriptor.
  ~RankChannel() override;

  absl::StatusOr<v1::RankLaunch> ReadLaunch();
  void StartReading(std::function<void(const absl::Status&)> on_lost,
                    std::function<void(const v1::PeerFailed&)> on_peer_failed,
                    std::function<void(const v1::LeaveOrder&)> on_leave,
                    std::function<void(const v1::TraceOrder&)> on_trace);

  absl::Status Set(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override;

  absl::Status Send(const v1::RankToAgent& message);

  // Call it after the last message: the agent may then close its end.
  void Close();
  bool closed();  // If true, Gets fail because of Close().

 private:
  void ReadLoop();
  absl::Status Take(v1::AgentToRank message);
  absl::StatusOr<int64_t> Ask(const std::string& key);  // Returns the request number.

  const int fd_;
  std::function<void(const absl::Status&)> on_lost_;  // All set before the reader starts.
  std::function<void(const v1::PeerFailed&)> on_peer_failed_;
  std::function<void(const v1::LeaveOrder&)> on_leave_;
  std::function<void(const v1::TraceOrder&)> on_trace_;
  std::thread reader_;

  Mutex mutex_;
  CondVar changed_;
  std::map<int64_t, std::string> values_ ABSL_GUARDED_BY(mutex_);  // Answers, by request.
  std::map<std::string, int64_t> open_ ABSL_GUARDED_BY(mutex_);    // Requests without a waiter, by key.
  int64_t last_request_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;

  // Held while a frame is written, as an exception to the rule of base/mutex.h: it guards the descriptor.
  Mutex write_mutex_;
};

}  // namespace fsdpd
