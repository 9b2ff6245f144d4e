// What one command needs to talk to its coordinator: flags, console, client, and how to fail and to follow.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "client/command_line.h"
#include "client/console.h"
#include "client/coordinator_client.h"

namespace fsdpd {

class Session {
 public:
  Session(const CommandLine& line, Console* console);  // Both must outlive it.

  CoordinatorClient& client() { return client_; }
  const CommandLine& line() const { return line_; }
  Console& console() { return console_; }

  // Tells the error; the exit code.
  int Fail(const absl::Status& status);

  // That --record's file can be written: asked before a job is submitted whose steps it is to hold.
  absl::Status CheckRecord() const;
  // Shows a job until it has ended; the exit code. Interrupted, it says how to find the job again.
  int Follow(const std::string& job_id, bool submitted_now);

 private:
  const CommandLine& line_;
  Console& console_;
  CoordinatorClient client_;
};

}  // namespace fsdpd
