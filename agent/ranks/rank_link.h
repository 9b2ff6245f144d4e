// The agent's end of the socket to one rank: frames of rank.proto, non-blocking. It owns the bytes, not their
// meaning; the loop of the supervisor decides when to read and write.
//
// A rank that exits before reading everything is not an error of Send or Flush: unread data is dropped, and
// Receive still returns the final messages of the rank and then how the stream ended.
//
// Not thread-safe; one thread owns it. Errors: OUT_OF_RANGE if the rank closed its end cleanly, ABORTED if
// the stream ended inside a frame (the rank died while writing), DATA_LOSS for an invalid frame, UNAVAILABLE
// for an errno. After an error the link must not be used.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

#include "base/rank/frame.h"
#include "base/unique_fd.h"
#include "proto/fsdpd/v1/rank.pb.h"

namespace fsdpd {

class RankLink {
 public:
  explicit RankLink(UniqueFd socket);

  int fd() const { return socket_.get(); }
  bool wants_write() const { return !unsent_.empty(); }

  // Queues the message and sends as much as the socket accepts; call Flush when poll reports POLLOUT.
  absl::Status Send(const v1::AgentToRank& message);
  absl::Status Flush();

  // Appends the complete messages of at most 256 KiB of received data. Sets `*drained` if nothing is left to
  // read.
  absl::Status Receive(std::vector<v1::RankToAgent>* messages, bool* drained);

 private:
  absl::Status TakeFrames(std::vector<v1::RankToAgent>* messages);

  UniqueFd socket_;
  FrameBuffer received_;
  std::string unsent_;
};

}  // namespace fsdpd
