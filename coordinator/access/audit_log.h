// Audit log: one line of JSON for each call that changes state, and for each call that was rejected because
// of its caller, in a file of the operator. It contains no spec, no token and no text that a caller wrote.
//
// Unauthenticated calls, which anyone who reaches the port can make, cannot fill the file: each pair of
// method and outcome gets one line per minute, which counts the omitted calls before it.
//
// Write() never blocks: a thread writes the file. Lines that cannot be written (full disk, a disk that hangs
// until the queue is full, a FIFO without a reader) are counted. The log reports when that begins, or that
// the file does not respond; once the file is writable again, it reports how many lines are missing. A file
// that reaches its maximum size is rotated to FILE.1, FILE.1 to FILE.2, and the last one is deleted. If the
// file is removed or renamed (logrotate), it is reopened before the next line.
//
// Thread-safe. The destructor writes pending lines, for at most kAuditCloseTimeout: a write to a file system
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

constexpr int kMaxAuditFiles = 4;  // FILE.1 to FILE.4.
constexpr absl::Duration kAuditCloseTimeout = absl::Seconds(3);

struct AuditRecord {
  absl::Time time;      // End of the call, as a date.
  std::string who;      // Name of a principal or a node; empty if authentication is off, or unauthenticated.
  std::string role;     // "submitter", "node"; empty if `who` is.
  std::string from;     // The peer in gRPC's form: "ipv4:10.0.0.7:51234".
  std::string method;   // "CancelJob"
  std::string object;   // Its target: a job id or node name; empty if it has none.
  std::string outcome;  // "OK", or the code and reason of the error: "PERMISSION_DENIED".
  bool unauthenticated = false;     // Unauthenticated: no valid token or certificate.
  std::string revoked_serial = {};  // Serial of the node's revoked certificate; otherwise empty.
  int64_t left_out = 0;  // Omitted unauthenticated calls to `method` since its last line. Set by Write().
};

// One line, including the newline.
std::string ToJsonLine(const AuditRecord& record);

class AuditLog {
 public:
  // Fails if the file cannot be created or written. `max_bytes`: of one file.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const std::string& path, int64_t max_bytes);
  ~AuditLog();

  void Write(AuditRecord record);
  int64_t lost() const;  // Lines that were not written to any file.

 private:
  class File;
  explicit AuditLog(std::shared_ptr<File> file);

  const std::shared_ptr<File> file_;  // Shared with the thread, which may outlive this.
  Repeats repeats_;                   // Limits lines about unauthenticated calls.
  std::thread thread_;
};

}  // namespace fsdpd
