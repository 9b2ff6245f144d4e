#include "fsdp/rank/rank_channel.h"

#include <absl/strings/str_cat.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/rank/frame.h"

namespace fsdpd {
namespace {

// Maximum of a single wait: an infinite one would overflow the clock, return immediately, and starve the
// thread that sets the value.
constexpr absl::Duration kLongestWait = absl::Hours(1);

}  // namespace

RankChannel::~RankChannel() {
  Close();
  shutdown(fd_, SHUT_RDWR);  // Wakes the reader.
  if (reader_.joinable()) reader_.join();
  close(fd_);
}

absl::StatusOr<v1::RankLaunch> RankChannel::ReadLaunch() {
  v1::AgentToRank message;
  FSDPD_RETURN_IF_ERROR(ReadFrame(fd_, &message));
  if (!message.has_launch()) return absl::DataLossError("first message of the agent is not RankLaunch");
  return std::move(*message.mutable_launch());
}

void RankChannel::StartReading(std::function<void(const absl::Status&)> on_lost,
                               std::function<void(const v1::PeerFailed&)> on_peer_failed,
                               std::function<void(const v1::LeaveOrder&)> on_leave,
                               std::function<void(const v1::TraceOrder&)> on_trace) {
  FSDPD_CHECK(!reader_.joinable());
  on_lost_ = std::move(on_lost);
  on_peer_failed_ = std::move(on_peer_failed);
  on_leave_ = std::move(on_leave);
  on_trace_ = std::move(on_trace);
  reader_ = std::thread([this] { ReadLoop(); });
}

void RankChannel::ReadLoop() {
  absl::Status status;
  while (status.ok()) {
    v1::AgentToRank message;
    status = ReadFrame(fd_, &message);
    if (status.ok()) status = Take(std::move(message));
  }
  {
    MutexLock lock(&mutex_);
    if (closing_) return;
    closing_ = true;
    changed_.SignalAll();
  }
  on_lost_(status);
}

absl::Status RankChannel::Take(v1::AgentToRank message) {
  {
    MutexLock lock(&mutex_);
    if (closing_) return absl::OkStatus();
    if (message.has_store_value()) {
      v1::StoreValue* value = message.mutable_store_value();
      values_[value->request()] = std::move(*value->mutable_value());
      changed_.SignalAll();
      return absl::OkStatus();
    }
  }
  if (message.has_peer_failed()) {
    on_peer_failed_(message.peer_failed());
  } else if (message.has_leave()) {
    on_leave_(message.leave());
  } else if (message.has_trace()) {
    on_trace_(message.trace());
  } else {
    return absl::DataLossError("unexpected message from the agent");
  }
  return absl::OkStatus();
}

absl::Status RankChannel::Set(const std::string& key, const std::string& value) {
  v1::RankToAgent message;
  message.mutable_store_set()->set_key(key);
  message.mutable_store_set()->set_value(value);
  return Send(message);
}

absl::StatusOr<int64_t> RankChannel::Ask(const std::string& key) {
  v1::RankToAgent message;
  message.mutable_store_get()->set_key(key);
  {
    MutexLock lock(&mutex_);
    message.mutable_store_get()->set_request(++last_request_);
  }
  FSDPD_RETURN_IF_ERROR(Send(message));
  return message.store_get().request();
}

absl::StatusOr<std::string> RankChannel::Get(const std::string& key, absl::Duration timeout) {
  const absl::Time deadline = Clock::Real()->Now() + timeout;
  int64_t request = 0;
  {
    MutexLock lock(&mutex_);
    const auto open = open_.find(key);
    if (open != open_.end()) {
      request = open->second;
      open_.erase(open);
    }
  }
  if (request == 0) {
    FSDPD_ASSIGN_OR_RETURN(request, Ask(key));
  }
  MutexLock lock(&mutex_);
  for (;;) {
    const auto found = values_.find(request);
    if (found != values_.end()) {
      std::string value = std::move(found->second);
      values_.erase(found);
      return value;
    }
    if (closing_)
      return absl::UnavailableError(absl::StrCat("store: the agent left while waiting for ", key));
    const absl::Duration left = deadline - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) {
      open_[key] = request;
      return absl::DeadlineExceededError(
          absl::StrCat("store: ", key, " was not set within ", absl::FormatDuration(timeout)));
    }
    changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(std::min(left, kLongestWait)));
  }
}

absl::Status RankChannel::Send(const v1::RankToAgent& message) {
  MutexLock lock(&write_mutex_);
  return WriteFrame(fd_, message);
}

bool RankChannel::closed() {
  MutexLock lock(&mutex_);
  return closing_;
}

void RankChannel::Close() {
  MutexLock lock(&mutex_);
  closing_ = true;
  changed_.SignalAll();
}

}  // namespace fsdpd
