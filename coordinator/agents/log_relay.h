// Relay of ranks' log lines from agents to readers. A tail queries each node that hosts a part of the attempt
// and merges the lines, in order per rank.
//
// Flow control: each node of a tail has a window (ReadLogs in agent.proto). The relay grants more only for
// lines that the reader has written to its client, so lines wait in the agents' files and not in the agents'
// streams. Agents of a release without windows send everything immediately. All tails share one memory limit;
// a tail whose lines exceed it is ended.
//
// Thread-safe. Ownership: a tail belongs to its reader. The relay drops it when the reader releases it, and
// must outlive it.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/limits.h"
#include "base/mutex.h"
#include "coordinator/job/attempt_ref.h"
#include "coordinator/nodes/node_registry.h"
#include "proto/fsdpd/v1/agent.pb.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

struct LogLimits {
  int64_t tail_window_bytes = kLogWindowBytes;
  int64_t all_tails_bytes = kMaxLogReaderBytes;
};

struct LogRequest {
  AttemptRef attempt;
  int rank = -1;  // -1: all.
  bool follow = false;
  int tail_lines = 0;
  // Reads records of these steps instead of logs; not with follow or tail_lines.
  std::optional<v1::StepRange> traces = {};
  std::optional<v1::RecordedSteps> steps = {};      // As above; attempt 0: all attempts.
  bool evidence = false;                            // Evidence stored for ranks without progress; as above.
  std::vector<v1::Job::Placement> placements = {};  // Placements of the attempt; empty: unknown.
};

class LogRelay;

class LogTail {
 public:
  enum class Got { kLines, kNothingYet, kEnd };

  // Waits at most `timeout` and takes all available lines. Returns kEnd once every node has ended and all
  // lines are taken. A call implies that the lines of the previous call were written to the client.
  Got Next(absl::Duration timeout, std::deque<v1::LogLines::Line>* lines);
  // The worst error of a node so far: UNAVAILABLE for a node that is not connected or disconnected,
  // RESOURCE_EXHAUSTED at a memory or reader limit, NOT_FOUND if an agent does not have the data, INTERNAL if
  // it could not read it.
  absl::Status status() const;

  ~LogTail();

 private:
  friend class LogRelay;
  struct Held {
    int64_t request = 0;  // The request that returned the line.
    v1::LogLines::Line line;
  };
  // `source_window_bytes` applies to each node that supports windows.
  LogTail(LogRelay* relay, int64_t source_window_bytes)
      : relay_(relay), source_window_bytes_(source_window_bytes) {}
  void Take(const v1::LogLines& lines);
  void EndSource(const absl::Status& status);
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GrantReadBytes();
  // Whether the node, which has no log yet, should be queried again.
  bool KeepOpenWithoutLog(const std::string& node);

  LogRelay* const relay_;
  const int64_t source_window_bytes_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Held> lines_ ABSL_GUARDED_BY(mutex_);
  // Bytes of lines_, and of lines that the reader has taken but not yet written.
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, int64_t> taken_ ABSL_GUARDED_BY(mutex_);  // By request: taken by the reader.
  // By request: written to the client, not granted again yet.
  std::map<int64_t, int64_t> written_ ABSL_GUARDED_BY(mutex_);
  int open_sources_ ABSL_GUARDED_BY(mutex_) = 0;
  bool overrun_ ABSL_GUARDED_BY(mutex_) = false;
  bool awaits_logs_ ABSL_GUARDED_BY(mutex_) = false;
  // Nodes without a log yet; their sources stay open.
  std::vector<std::string> without_log_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class LogRelay {
 public:
  explicit LogRelay(NodeRegistry* nodes, LogLimits limits = {}) : nodes_(nodes), limits_(limits) {}

  // `awaits_logs`: the reader follows an attempt that may still be launching. An agent without a log keeps
  // its place in the tail, and RequestAgain() queries it again.
  std::shared_ptr<LogTail> Open(const LogRequest& request, const std::vector<std::string>& nodes,
                                bool awaits_logs = false);
  // `last`: the final query, because nothing of the attempt will start any more.
  void RequestAgain(const LogRequest& request, const std::shared_ptr<LogTail>& tail, bool last);
  // Called when the reader is done; stops its agents.
  void Close(const std::shared_ptr<LogTail>& tail);

  int64_t held_bytes() const { return held_bytes_; }

  // Takes lines from an agent's stream. Drops lines of an attempt or rank that was not requested, or that
  // `request.placements` assigns to another node. Returns the number of dropped lines.
  int Take(const std::string& node, const v1::LogLines& lines);
  // Ends the node's part of a tail because its lines cannot be accepted: the reader gets `why`, and the agent
  // is asked to stop sending.
  void Fail(const std::string& node, int64_t request, const std::string& why);
  void NodeGone(const std::string& node);

 private:
  friend class LogTail;
  struct Source {
    std::string node;
    std::shared_ptr<LogTail> tail;
    bool window = false;  // The agent waits for grants.
    int attempt = 0;      // Attempt of its lines; 0: any.
    int first_rank = 0;
    int ranks = kMaxWorld;
    bool Sends(const v1::LogLines::Line& line) const;
  };

  using Sources = std::map<int64_t, Source>;
  static void LimitLines(const LogRequest& request, Source* source);
  void Ask(const LogRequest& request, const std::string& node, const std::shared_ptr<LogTail>& tail);
  // Returns the request's number; RESOURCE_EXHAUSTED if the node has the maximum number of readers.
  absl::StatusOr<int64_t> AddSource(Source source);
  Sources::iterator RemoveSource(Sources::iterator source) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendStop(const std::string& node, int64_t request);
  bool Reserve(int64_t bytes);  // False if the memory limit would be exceeded.
  void Release(int64_t bytes) { held_bytes_ -= bytes; }
  void Grant(int64_t request, int64_t bytes);

  NodeRegistry* const nodes_;
  const LogLimits limits_;
  std::atomic<int64_t> held_bytes_{0};
  Mutex mutex_;
  int64_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
  Sources sources_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> readers_ ABSL_GUARDED_BY(mutex_);  // By node: number of readers.
};

}  // namespace fsdpd
