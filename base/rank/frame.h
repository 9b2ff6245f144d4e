// Framing of protobuf messages on a stream socket (rank <-> agent): a 4-byte little-endian length, then the
// message. Both ends are on one machine, so there is no checksum; an invalid length closes the connection.
//
// Thread safety: one thread may read and another write the same descriptor; two writers need a lock. Errors:
// OUT_OF_RANGE if the peer closed between frames (an orderly end), DATA_LOSS for a torn, oversized or
// unparsable frame, UNAVAILABLE for an errno.
#pragma once

#include <absl/status/status.h>
#include <google/protobuf/message_lite.h>

#include <string>

namespace fsdpd {

// For a writer with an event loop: appends the bytes of the frame to `bytes`. INVALID_ARGUMENT, without
// appending anything, for a message over the limit.
absl::Status AppendFrame(const google::protobuf::MessageLite& message, std::string* bytes);

// Blocks until all bytes are written. Never raises SIGPIPE.
absl::Status WriteFrame(int fd, const google::protobuf::MessageLite& message);

// Blocks until a whole frame is read.
absl::Status ReadFrame(int fd, google::protobuf::MessageLite* message);

// For a reader with an event loop: append bytes as they arrive, take complete frames.
class FrameBuffer {
 public:
  void Append(const char* data, size_t size) { bytes_.append(data, size); }

  // Sets `*complete` and the payload of the next frame; false if absent. DATA_LOSS for an invalid
  // length.
  absl::Status Next(std::string* payload, bool* complete);

  // Bytes of an incomplete frame. If not zero at the end of the stream, the last frame was torn.
  size_t pending_bytes() const { return bytes_.size() - consumed_; }

 private:
  std::string bytes_;
  size_t consumed_ = 0;
};

}  // namespace fsdpd
