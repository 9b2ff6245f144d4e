// The agent's end of one rank's socket: frames of rank.proto, never blocking. It owns the bytes, not their
// meaning; the supervisor's loop says when to read and when to write.
//
// A rank that ended before it read everything is no error of Send or Flush: what it does not take is dropped,
// and Receive still has its last words and then says how it ended.
//
// Thread safety: none; one thread owns it. Errors: OUT_OF_RANGE when the rank closed its end in order,
// ABORTED when it broke off inside a frame (it died while it wrote), DATA_LOSS when it sent what is no frame,
// UNAVAILABLE for an errno. After an error the link is of no more use.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

#include "base/frame.h"
#include "base/unique_fd.h"
#include "proto/fsdpd/v1/rank.pb.h"

namespace fsdpd {

class RankLink {
 public:
  explicit RankLink(UniqueFd socket);

  int fd() const { return socket_.get(); }
  bool wants_write() const { return !unsent_.empty(); }

  // Queues and sends as much as the socket takes; Flush sends the rest when poll says so.
  absl::Status Send(const v1::AgentToRank& message);
  absl::Status Flush();

  // Appends the whole messages among at most 256 KiB of what has arrived. `*drained` says that nothing was
  // left.
  absl::Status Receive(std::vector<v1::RankToAgent>* messages, bool* drained);

 private:
  absl::Status TakeFrames(std::vector<v1::RankToAgent>* messages);

  UniqueFd socket_;
  FrameBuffer received_;
  std::string unsent_;
};

}  // namespace fsdpd
