// A rank's line to its agent: the socket that it inherits as descriptor 3. Reads the launch, writes reports,
// and is the rank's rendezvous store, which the agent relays to the coordinator.
//
// Call order: ReadLaunch once, then StartReading once, then anything.
// When the agent closes its end, or sends what does not parse, `on_lost` runs on the reader's thread: a rank
// must not outlive its agent, so the program exits there at once. When the agent says that another rank has
// failed, `on_peer_failed` runs there, `on_leave` when it tells the rank to leave, and `on_trace` when steps
// are to be traced. None is called after Close().
//
// A Get whose time is over leaves its request open, and the next one of that key waits for the same: asking
// again and again costs the agent nothing.
//
// Thread safety: Set, Get and Send may be called from any thread. Errors: UNAVAILABLE when the agent is gone,
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
  explicit RankChannel(int fd) : fd_(fd) {}  // Takes the descriptor.
  ~RankChannel() override;

  absl::StatusOr<v1::RankLaunch> ReadLaunch();
  void StartReading(std::function<void(const absl::Status&)> on_lost,
                    std::function<void(const v1::PeerFailed&)> on_peer_failed,
                    std::function<void(const v1::LeaveOrder&)> on_leave,
                    std::function<void(const v1::TraceOrder&)> on_trace);

  absl::Status Set(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override;

  absl::Status Send(const v1::RankToAgent& message);

  // After the last message: the agent may close its end now.
  void Close();
  bool closed();  // Gets fail since then, and not because anything is wrong.

 private:
  void ReadLoop();
  absl::Status Take(v1::AgentToRank message);
  absl::StatusOr<int64_t> Ask(const std::string& key);  // The number of the request.

  const int fd_;
  std::function<void(const absl::Status&)> on_lost_;  // All set before the reader starts.
  std::function<void(const v1::PeerFailed&)> on_peer_failed_;
  std::function<void(const v1::LeaveOrder&)> on_leave_;
  std::function<void(const v1::TraceOrder&)> on_trace_;
  std::thread reader_;

  Mutex mutex_;
  CondVar changed_;
  std::map<int64_t, std::string> values_ ABSL_GUARDED_BY(mutex_);  // Answers, by request.
  std::map<std::string, int64_t> open_ ABSL_GUARDED_BY(mutex_);    // Requests that nobody waits for, by key.
  int64_t last_request_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;

  // Held across the write of one frame, against the rule of base/mutex.h: what it guards is the descriptor.
  Mutex write_mutex_;
};

}  // namespace fsdpd
