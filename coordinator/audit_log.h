// Who did what: a line of JSON for each call that changes something, and for each that was refused for who
// made it, in a file of the operator's. No spec, no token and no text of a caller's own gets into it.
//
// Calls of nobody, which whoever reaches the port may make, cannot fill it: of each method and outcome a line
// a minute, which counts those before it that have none.
//
// Write() never waits: a thread of its own writes, and what it cannot write (a full disk, a disk that hangs
// until the queue is full) is counted. The log says when that begins, and the file how many lines are missing
// once it can be written again. A file that has reached its size becomes FILE.1, that one FILE.2, and the
// last is removed. A file that somebody removes or renames (logrotate) is opened anew before the next line.
//
// Thread-safe. The destructor writes what waits.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/repeats.h"

namespace fsdpd {

constexpr int kKeptAuditFiles = 4;  // FILE.1 to FILE.4.

struct AuditRecord {
  absl::Time time;      // When the call ended; a date.
  std::string who;      // A person's or a node's name; empty where the coordinator does not ask, or nobody's.
  std::string role;     // "submitter", "node"; empty as `who`.
  std::string from;     // The peer, as gRPC has it: "ipv4:10.0.0.7:51234".
  std::string method;   // "CancelJob"
  std::string object;   // What it acted on: a job's id, a node's name; empty where there is none.
  std::string outcome;  // "OK", or the code and the reason of the refusal: "PERMISSION_DENIED".
  bool nobody = false;  // Who called could not be told: without a token or certificate that counts.
  std::string revoked_serial = {};  // Of the node's certificate, which is revoked; empty elsewhere.
  int64_t left_out = 0;  // Calls of nobody to `method` since the line of one before. Set by Write().
};

// One line, with its end.
std::string ToJsonLine(const AuditRecord& record);

class AuditLog {
 public:
  // Fails where the file cannot be made or written to. `max_bytes`: of one file.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const std::string& path, int64_t max_bytes);
  ~AuditLog();

  void Write(AuditRecord record);
  int64_t lost() const;  // Lines that are in no file.

 private:
  AuditLog(std::string path, int64_t max_bytes, int fd, int64_t bytes);
  void Run();
  // On the writing thread: file and size are its own.
  void Append(const std::string& line);
  void Lost(int64_t lines, const std::string& why);
  absl::Status WriteWhole(const std::string& line);
  absl::Status Rotate();

  const std::string path_;
  const int64_t max_bytes_;
  int fd_;               // -1 while it cannot be opened.
  int64_t bytes_;        // Of the file.
  int64_t missing_ = 0;  // Lost since the last line that was written.
  std::string last_fault_;

  Repeats repeats_;  // Of calls of nobody.
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::string> waiting_ ABSL_GUARDED_BY(mutex_);
  int64_t overflowed_ ABSL_GUARDED_BY(mutex_) = 0;  // Not yet in missing_.
  int64_t lost_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace fsdpd
