// Frames of protobuf messages over a stream socket (rank <-> agent): a 4-byte little-endian length, then the
// message. Both ends are ours, on one machine, so there is no checksum; a bad length closes the connection.
//
// Thread safety: one thread may read and another write the same descriptor; two writers need a lock outside.
// Errors: OUT_OF_RANGE when the peer closed between frames (an orderly end), DATA_LOSS for a torn or
// oversized frame or one that does not parse, UNAVAILABLE for an errno.
#pragma once

#include <absl/status/status.h>
#include <google/protobuf/message_lite.h>

#include <string>

namespace fsdpd {

// For a writer with an event loop: the frame's bytes, to be sent as the socket takes them. INVALID_ARGUMENT,
// and nothing appended, for a message over the limit.
absl::Status AppendFrame(const google::protobuf::MessageLite& message, std::string* bytes);

// Blocks until all bytes are written. Never raises SIGPIPE.
absl::Status WriteFrame(int fd, const google::protobuf::MessageLite& message);

// Blocks until a whole frame is read.
absl::Status ReadFrame(int fd, google::protobuf::MessageLite* message);

// For a reader with an event loop: feed bytes as they arrive, take whole frames out.
class FrameBuffer {
 public:
  void Append(const char* data, size_t size) { bytes_.append(data, size); }

  // True and the next frame's payload in `*payload`; false when none is complete. DATA_LOSS on a bad length.
  absl::Status Next(std::string* payload, bool* complete);

  // Bytes of an incomplete frame: more than zero at the end of the stream means that it was torn.
  size_t pending_bytes() const { return bytes_.size() - consumed_; }

 private:
  std::string bytes_;
  size_t consumed_ = 0;
};

}  // namespace fsdpd
