// Brings ranks' log lines from agents to those who read them. A tail asks every node that holds a part of the
// attempt and merges what comes, in order per rank.
//
// Bounds: agents send a tail's lines as fast as its reader takes them. Each node of it has a window
// (ReadLogs in agent.proto) and gets the next grant for what the reader has written to its client, so that
// lines wait in the files where they are, neither here nor in an agent's stream, which carries more than
// logs. An agent of a release that knows no windows gets none, and sends all at once. What all tails hold
// together is bounded too: the tail for whose lines there is no room is ended.
//
// Thread-safe. Ownership: a tail belongs to its reader; the relay forgets it when the reader lets go, and
// lives longer.
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
#include "coordinator/attempt_ref.h"
#include "coordinator/node_registry.h"
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
  std::optional<v1::StepRange> traces = {};  // Of these steps, instead of the logs; without follow and tail.
  std::optional<v1::RecordedSteps> steps = {};      // Likewise; of attempt 0: of all attempts.
  bool evidence = false;                            // What is kept of ranks that stood still, likewise.
  std::vector<v1::Job::Placement> placements = {};  // Of the attempt; empty: not known.
};

class LogRelay;

class LogTail {
 public:
  enum class Got { kLines, kNothingYet, kEnd };

  // Waits at most `timeout`; takes all lines there are. kEnd once every node has ended and all was taken.
  // Those of the call before are then with the client.
  Got Next(absl::Duration timeout, std::deque<v1::LogLines::Line>* lines);
  // Faults of nodes so far, worst first: UNAVAILABLE for a node that is not connected or went away,
  // RESOURCE_EXHAUSTED when there was no room, NOT_FOUND for what an agent says it does not have,
  // INTERNAL for what it could not read.
  absl::Status status() const;

  ~LogTail();

 private:
  friend class LogRelay;
  struct Held {
    int64_t request = 0;  // Which brought it.
    v1::LogLines::Line line;
  };
  // `source_window_bytes`: of each node that knows windows.
  LogTail(LogRelay* relay, int64_t source_window_bytes)
      : relay_(relay), source_window_bytes_(source_window_bytes) {}
  void Take(const v1::LogLines& lines);
  void EndSource(const absl::Status& status);
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GrantWhatWasRead();
  // Whether the node, which has no log yet, is asked again.
  bool KeepForAskAgain(const std::string& node);

  LogRelay* const relay_;
  const int64_t source_window_bytes_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Held> lines_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // Of lines_, and of what the reader has and has not written.
  std::map<int64_t, int64_t> taken_ ABSL_GUARDED_BY(mutex_);  // By request: with the reader.
  std::map<int64_t, int64_t> written_
      ABSL_GUARDED_BY(mutex_);  // By request: with the client, not granted anew.
  int open_sources_ ABSL_GUARDED_BY(mutex_) = 0;
  bool overrun_ ABSL_GUARDED_BY(mutex_) = false;
  bool awaits_logs_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::string> without_log_ ABSL_GUARDED_BY(mutex_);  // Nodes, whose sources stay open meanwhile.
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class LogRelay {
 public:
  explicit LogRelay(NodeRegistry* nodes, LogLimits limits = {}) : nodes_(nodes), limits_(limits) {}

  // `awaits_logs`: an attempt is followed that may be launching. An agent that has no log yet keeps its place
  // in the tail, and AskAgain() asks it again.
  std::shared_ptr<LogTail> Open(const LogRequest& request, const std::vector<std::string>& nodes,
                                bool awaits_logs = false);
  // `last`: for the last time, as nothing of the attempt starts any more.
  void AskAgain(const LogRequest& request, const std::shared_ptr<LogTail>& tail, bool last);
  // The reader is done with the tail: its agents are told so.
  void Close(const std::shared_ptr<LogTail>& tail);

  // What all tails hold together.
  int64_t held_bytes() const { return held_bytes_; }

  // From agents' streams. Drops lines of another attempt than was asked for, and of ranks that were not asked
  // for or that `request.placements` has on another node; returns how many.
  int Take(const std::string& node, const v1::LogLines& lines);
  // Of what the node sends for it something cannot be taken: its reader is told why and gets no more, and its
  // agent is told to send none.
  void Fail(const std::string& node, int64_t request, const std::string& why);
  void NodeGone(const std::string& node);

 private:
  friend class LogTail;
  struct Source {
    std::string node;
    std::shared_ptr<LogTail> tail;
    bool window = false;  // Its agent waits for grants.
    int attempt = 0;      // Of its lines; 0: of any.
    int first_rank = 0;
    int ranks = kMaxWorld;
    bool Sends(const v1::LogLines::Line& line) const;
  };

  using Sources = std::map<int64_t, Source>;
  static void LimitLines(const LogRequest& request, Source* source);
  void Ask(const LogRequest& request, const std::string& node, const std::shared_ptr<LogTail>& tail);
  // The number of its request; RESOURCE_EXHAUSTED where the node has as many readers as it may.
  absl::StatusOr<int64_t> AddSource(Source source);
  Sources::iterator RemoveSource(Sources::iterator source) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StopReading(const std::shared_ptr<LogTail>& tail);
  void SendStop(const std::string& node, int64_t request);
  bool Reserve(int64_t bytes);  // False when there is no room.
  void Release(int64_t bytes) { held_bytes_ -= bytes; }
  void Grant(int64_t request, int64_t bytes);

  NodeRegistry* const nodes_;
  const LogLimits limits_;
  std::atomic<int64_t> held_bytes_{0};
  Mutex mutex_;
  int64_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
  Sources sources_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> readers_ ABSL_GUARDED_BY(mutex_);  // By node: how many of them.
};

}  // namespace fsdpd
