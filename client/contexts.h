// Named coordinators, in a file of the person's own:
//
//   current: lab
//   contexts:
//     lab: {server: coordinator.example:7777, coordinator_ca: ca.crt, token_file: alice.token}
//     here: {server: 127.0.0.1:7777}
//
// A relative path is relative to the file's directory. The file is written by hand; this code changes
// `current` alone, and leaves the rest of the text as it is.
//
// What a flag says counts before a variable, and a variable before the current context. A token is for the
// coordinator that it was made for: who names a server gets nothing of a context, and who names a context by
// a flag gets its server, and none of the variables that go with FSDPD_SERVER.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "client/command_line.h"

namespace fsdpd {

struct Context {
  std::string name;
  std::string server;
  std::string coordinator_ca;  // A path, or empty.
  std::string token_file;      // A path, or empty.
};

struct Contexts {
  std::string path;     // Of the file, which may not be there.
  std::string current;  // Empty where none is; may name one that is not there.
  std::vector<Context> all;

  // INVALID_ARGUMENT with the nearest name.
  absl::StatusOr<Context> Find(const std::string& name) const;
};

// By FSDPD_CONFIG, XDG_CONFIG_HOME or HOME; empty where none is set.
std::string ContextsPath();

// A file that is not there has none. INVALID_ARGUMENT with the place of the first fault.
absl::StatusOr<Contexts> ReadContexts(const std::string& path);

// Makes `name` the current one, in the file.
absl::Status UseContext(const std::string& path, const std::string& name);

// Fills what `line` leaves open, from its context and from kDefaultServer. INVALID_ARGUMENT where a server
// and a context are named by equal right.
absl::Status TakeContext(CommandLine* line);

}  // namespace fsdpd
