// Contexts: named coordinators in a file of the user, like the contexts of a kubeconfig.
//
//   current: lab
//   contexts:
//     lab: {server: coordinator.example:7777, coordinator_ca: ca.crt, token_file: alice.token}
//     here: {server: 127.0.0.1:7777}
//
// Relative paths are relative to the directory of the file. Users write the file; this code changes only
// `current` and preserves the rest of the text.
//
// Precedence: flags, then environment variables, then the current context. A token must only reach the
// coordinator that it was created for. Therefore --server ignores all of the context, and --context ignores
// FSDPD_SERVER and the variables that belong to it.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "client/flags/command_line.h"

namespace fsdpd {

struct Context {
  std::string name;
  std::string server;
  std::string coordinator_ca;  // A path, or empty.
  std::string token_file;      // A path, or empty.
};

struct Contexts {
  std::string path;     // The file, which may not exist.
  std::string current;  // May be empty, or name a context that does not exist.
  std::vector<Context> all;

  // Returns INVALID_ARGUMENT with the most similar name for an unknown context.
  absl::StatusOr<Context> Find(const std::string& name) const;
};

// Path of the contexts file, from FSDPD_CONFIG, XDG_CONFIG_HOME or HOME; empty if none of them is set.
std::string ContextsPath();

// Returns no contexts for a file that does not exist, and INVALID_ARGUMENT with the position of the first
// error.
absl::StatusOr<Contexts> ReadContexts(const std::string& path);

// Sets `current` of the file to `name`.
absl::Status UseContext(const std::string& path, const std::string& name);

// Fills empty fields of `line` from its context and kDefaultServer. Returns INVALID_ARGUMENT if a server and
// a context are given with equal precedence, such as two flags.
absl::Status ApplyContext(CommandLine* line);

}  // namespace fsdpd
