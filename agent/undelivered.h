// What an agent that ends could not tell the coordinator, which is away: how its ranks ended and what they
// saved. The next agent of the work dir tells it. A node that left in order would else look like one that
// crashed, and its jobs would pay with an attempt.
//
// One file of the work dir, WORK_DIR/undelivered: the node's name, then each message as a frame. It is on
// disk when KeepUndelivered returns. Messages are those that a broken stream would carry again (outbox.h); of
// an attempt that is long over the coordinator ignores them.
//
// REQUIRES: the lock of the work dir (log_keeper.h). Thread safety: none.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

// In the place of what is there; of no messages the file goes. Errors: UNAVAILABLE with the file and the
// system's words.
absl::Status KeepUndelivered(const std::string& work_dir, const std::string& node,
                             const std::vector<v1::AgentMessage>& messages);

// They are the caller's then, and the file is gone. None where nothing was kept; what cannot be read, and
// what an agent of another node kept, is left out, which the log says.
std::vector<v1::AgentMessage> TakeUndelivered(const std::string& work_dir, const std::string& node);

}  // namespace fsdpd
