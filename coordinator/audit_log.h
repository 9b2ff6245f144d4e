// Who did what: a line of JSON for each call that changes something, and for each that was refused for who
// made it, in a file of the operator's. No spec, no token and no text of a caller's own gets into it.
//
// Calls of nobody, which whoever reaches the port may make, cannot fill it: of each method and outcome a line
// a minute, which counts those before it that have none.
//
// Write() never blocks: a thread of its own writes, and what it cannot write (a full disk, a disk that hangs
// until the queue is full, a FIFO without a reader) is counted. The log says when that begins, or that the
// file does not respond, and the file how many lines are missing once it can be written again. A file that
// has reached its size becomes FILE.1, that one FILE.2, and the last is removed. A file that somebody removes
// or renames (logrotate) is opened anew before the next line.
//
// Thread-safe. The destructor writes pending lines, for kAuditCloseTimeout at most: a write to a file system
// that does not respond cannot be interrupted, so its thread is left behind.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "base/repeats.h"

namespace fsdpd {

constexpr int kKeptAuditFiles = 4;  // FILE.1 to FILE.4.
constexpr absl::Duration kAuditCloseTimeout = absl::Seconds(3);

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
  class File;
  explicit AuditLog(std::shared_ptr<File> file);

  const std::shared_ptr<File> file_;  // Shared with the thread, which may outlive this.
  Repeats repeats_;                   // Of calls of nobody.
  std::thread thread_;
};

}  // namespace fsdpd
