// Brings ranks' log lines from agents to those who read them. A tail asks every node that holds a part of the
// attempt and merges what comes, in order per rank.
//
// Bounds: a tail holds at most `tail_bytes`. When its reader does not keep up, the agent's stream is held
// back for `hold_back` and the tail is then ended: one reader must not silence a node.
//
// Thread-safe. Ownership: a tail belongs to its reader; the relay forgets it when the reader lets go.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "coordinator/attempt_ref.h"
#include "coordinator/node_registry.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

struct LogLimits {
  size_t tail_bytes = 32 << 20;
  absl::Duration hold_back = absl::Seconds(1);
};

struct LogRequest {
  AttemptRef attempt;
  int rank = -1;  // -1: all.
  bool follow = false;
  int tail_lines = 0;
};

class LogTail {
 public:
  enum class Got { kLines, kNothingYet, kEnd };

  // Waits at most `timeout`; takes all lines there are. kEnd once every node has ended and all was taken.
  Got Next(absl::Duration timeout, std::deque<v1::LogLines::Line>* lines);
  // Faults of nodes so far, worst first: UNAVAILABLE for a node that is not connected or went away,
  // RESOURCE_EXHAUSTED for a reader that was too slow, NOT_FOUND for what an agent says it does not have.
  absl::Status status() const;

 private:
  friend class LogRelay;
  explicit LogTail(const LogLimits& limits) : limits_(limits) {}
  void Take(const v1::LogLines& lines);
  void EndSource(const absl::Status& status);
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const LogLimits limits_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<v1::LogLines::Line> lines_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int open_sources_ ABSL_GUARDED_BY(mutex_) = 0;
  bool overrun_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class LogRelay {
 public:
  explicit LogRelay(NodeRegistry* nodes, LogLimits limits = {}) : nodes_(nodes), limits_(limits) {}

  std::shared_ptr<LogTail> Open(const LogRequest& request, const std::vector<std::string>& nodes);
  // Tells the agents that nobody follows any more; what they still send is taken until they end.
  void StopFollowing(const std::shared_ptr<LogTail>& tail);
  // The reader is done with the tail.
  void Close(const std::shared_ptr<LogTail>& tail);

  // From agents' streams.
  void Take(const std::string& node, const v1::LogLines& lines);
  void NodeGone(const std::string& node);

 private:
  struct Source {
    std::string node;
    std::shared_ptr<LogTail> tail;
  };

  NodeRegistry* const nodes_;
  const LogLimits limits_;
  Mutex mutex_;
  int64_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, Source> sources_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
