// Session of one command with its coordinator: flags, console, client, error reporting, and following of a
// job. Not thread-safe.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <google/protobuf/message.h>

#include <string>
#include <utility>

#include "base/check.h"
#include "client/connect/coordinator_client.h"
#include "client/connect/follow_screen.h"
#include "client/flags/command_line.h"
#include "client/text/console.h"

// Like FSDPD_ASSIGN_OR_RETURN, in a command: reports the error, and returns its exit code.
#define FSDPD_ASSIGN_OR_FAIL(declaration, session, expression)          \
  auto FSDPD_CONCAT(fsdpd_or_, __LINE__) = (expression);                \
  if (!FSDPD_CONCAT(fsdpd_or_, __LINE__).ok())                          \
    return (session)->Fail(FSDPD_CONCAT(fsdpd_or_, __LINE__).status()); \
  declaration = std::move(FSDPD_CONCAT(fsdpd_or_, __LINE__)).value()

namespace fsdpd {

// Reads the server address, the token and the trusted CAs from the context, the files and the environment
// variables that `line` names, and stores them in `line`.
absl::Status ReadAccess(CommandLine* line);

class Session {
 public:
  Session(const CommandLine& line, Console* console);  // Both must outlive it.

  CoordinatorClient& client() { return client_; }
  const CommandLine& line() const { return line_; }
  Console& console() { return console_; }

  // Reports the error, of `job` if it is not empty. Returns the exit code.
  int Fail(const absl::Status& status, const std::string& job = "");

  // Formats `message` as -o json, yaml or jsonpath. Returns INVALID_ARGUMENT if the template names a field
  // that the message does not have.
  absl::StatusOr<std::string> DataOf(const google::protobuf::Message& message) const;
  // Prints DataOf(message). Returns the exit code.
  int Show(const google::protobuf::Message& message);

  // Opens the file of --record for Follow(). Call before the job is submitted, so that an unwritable path is
  // reported first. Call at most once.
  absl::Status OpenRecord();
  // Shows a job until it ends, and records its steps. Returns the exit code. Call at most once. When
  // interrupted, it prints the commands that find the job again.
  int Follow(const std::string& job_id, bool submitted_now);

 private:
  const CommandLine& line_;
  Console& console_;
  CoordinatorClient client_;
  FollowScreen screen_;
  bool recording_ = false;
};

}  // namespace fsdpd
