// What one command needs to talk to its coordinator: flags, console, client, and how to fail and to follow.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <google/protobuf/message.h>

#include <string>

#include "client/command_line.h"
#include "client/console.h"
#include "client/coordinator_client.h"
#include "client/follow_screen.h"

namespace fsdpd {

// Reads whom to call, who calls and whom to trust, from the context, the files and the environment that
// `line` names.
absl::Status ReadAccess(CommandLine* line);

class Session {
 public:
  Session(const CommandLine& line, Console* console);  // Both must outlive it.

  CoordinatorClient& client() { return client_; }
  const CommandLine& line() const { return line_; }
  Console& console() { return console_; }

  // Tells the error; the exit code.
  int Fail(const absl::Status& status);

  // `message` as -o json, yaml or jsonpath has it. INVALID_ARGUMENT where the jsonpath asks for what it has
  // not.
  absl::StatusOr<std::string> DataOf(const google::protobuf::Message& message) const;
  // Prints that; the exit code.
  int Show(const google::protobuf::Message& message);

  // Opens --record's file, once, for Follow(): before a job is submitted whose steps it is to hold. An error
  // says why it cannot be written.
  absl::Status OpenRecord();
  // Shows a job until it has ended, and records its steps; the exit code. Once. Interrupted, it says how to
  // find the job again.
  int Follow(const std::string& job_id, bool submitted_now);

 private:
  const CommandLine& line_;
  Console& console_;
  CoordinatorClient client_;
  FollowScreen screen_;
  bool recording_ = false;
};

}  // namespace fsdpd
