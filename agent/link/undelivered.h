// Messages that an agent could not deliver before it exited because the coordinator was unreachable: exits of
// its ranks and saved checkpoints. The next agent with this work directory sends them. Otherwise a node that
// shut down gracefully would look like a crash, and its jobs would lose an attempt.
//
// One file, WORK_DIR/undelivered: the node name, then each message as a frame.
//
// REQUIRES: the lock of the work directory (log_keeper.h). Not thread-safe.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

// Replaces the file durably; removes it if `messages` is empty. UNAVAILABLE with the path and the error.
absl::Status StoreUndelivered(const std::string& work_dir, const std::string& node,
                              const std::vector<v1::AgentMessage>& messages);

// Removes the file and returns its messages, after those that an agent of release 0.1 left (WORK_DIR/untold);
// empty if absent. A file that is unreadable or of another node is skipped with a warning.
std::vector<v1::AgentMessage> TakeUndelivered(const std::string& work_dir, const std::string& node);

}  // namespace fsdpd
