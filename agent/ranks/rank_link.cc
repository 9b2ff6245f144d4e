#include "agent/ranks/rank_link.h"

#include <absl/strings/str_cat.h>
#include <errno.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/rank/frame.h"

namespace fsdpd {
namespace {

constexpr size_t kReadBytes = 64 << 10;
// Bounded, so that a rank that floods its socket does not starve the others.
constexpr int kReadsPerTurn = 4;

}  // namespace

RankLink::RankLink(UniqueFd socket) : socket_(std::move(socket)) {}

absl::Status RankLink::Send(const v1::AgentToRank& message) {
  FSDPD_RETURN_IF_ERROR(AppendFrame(message, &unsent_));
  return Flush();
}

absl::Status RankLink::Flush() {
  while (!unsent_.empty()) {
    const ssize_t n = send(fd(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return absl::OkStatus();
    if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) {
      unsent_.clear();
      return absl::OkStatus();
    }
    if (n < 0) return ErrnoStatus("send to the rank");
    unsent_.erase(0, static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status RankLink::Receive(std::vector<v1::RankToAgent>* messages, bool* drained) {
  *drained = false;
  char bytes[kReadBytes];
  for (int i = 0; i < kReadsPerTurn; ++i) {
    const ssize_t n = recv(fd(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      *drained = true;
      return absl::OkStatus();
    }
    if (n < 0 && errno != ECONNRESET) return ErrnoStatus("receive from the rank");
    if (n <= 0) {
      *drained = true;
      if (received_.pending_bytes() == 0) return absl::OutOfRangeError("the rank closed its end");
      return absl::AbortedError("the rank's stream ended inside a frame");
    }
    received_.Append(bytes, static_cast<size_t>(n));
    FSDPD_RETURN_IF_ERROR(TakeFrames(messages));
  }
  return absl::OkStatus();
}

absl::Status RankLink::TakeFrames(std::vector<v1::RankToAgent>* messages) {
  std::string payload;
  while (true) {
    bool complete = false;
    FSDPD_RETURN_IF_ERROR(received_.Next(&payload, &complete));
    if (!complete) return absl::OkStatus();
    v1::RankToAgent message;
    if (!message.ParseFromString(payload)) {
      return absl::DataLossError(
          absl::StrCat("frame of ", payload.size(), " bytes is not a RankToAgent message"));
    }
    messages->push_back(std::move(message));
  }
}

}  // namespace fsdpd
