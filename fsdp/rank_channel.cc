#include "fsdp/rank_channel.h"

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/frame.h"

namespace fsdpd {

RankChannel::~RankChannel() {
  Close();
  shutdown(fd_, SHUT_RDWR);  // Wakes the reader.
  if (reader_.joinable()) reader_.join();
  close(fd_);
}

absl::StatusOr<v1::RankLaunch> RankChannel::ReadLaunch() {
  v1::AgentToRank message;
  FSDPD_RETURN_IF_ERROR(ReadFrame(fd_, &message));
  if (!message.has_launch()) return absl::DataLossError("the agent's first message is not RankLaunch");
  return std::move(*message.mutable_launch());
}

void RankChannel::StartReading(std::function<void(const absl::Status&)> on_lost) {
  FSDPD_CHECK(!reader_.joinable());
  reader_ = std::thread([this, on_lost = std::move(on_lost)] { ReadLoop(on_lost); });
}

void RankChannel::ReadLoop(const std::function<void(const absl::Status&)>& on_lost) {
  for (;;) {
    v1::AgentToRank message;
    absl::Status status = ReadFrame(fd_, &message);
    if (status.ok() && !message.has_store_value())
      status = absl::DataLossError("unexpected message from the agent");
    {
      MutexLock lock(&mutex_);
      if (closing_) return;
      if (status.ok()) {
        v1::StoreValue* value = message.mutable_store_value();
        values_[value->request()] = std::move(*value->mutable_value());
        changed_.SignalAll();
        continue;
      }
      closing_ = true;
      changed_.SignalAll();
    }
    on_lost(status);
    return;
  }
}

absl::Status RankChannel::Set(const std::string& key, const std::string& value) {
  v1::RankToAgent message;
  message.mutable_store_set()->set_key(key);
  message.mutable_store_set()->set_value(value);
  return Send(message);
}

absl::StatusOr<std::string> RankChannel::Get(const std::string& key, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  v1::RankToAgent message;
  message.mutable_store_get()->set_key(key);
  int64_t request;
  {
    MutexLock lock(&mutex_);
    request = ++last_request_;
  }
  message.mutable_store_get()->set_request(request);
  FSDPD_RETURN_IF_ERROR(Send(message));
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
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrCat("store: ", key, " was not set within ", absl::FormatDuration(timeout)));
    }
    changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(left));
  }
}

absl::Status RankChannel::Send(const v1::RankToAgent& message) {
  MutexLock lock(&write_mutex_);
  return WriteFrame(fd_, message);
}

void RankChannel::Close() {
  MutexLock lock(&mutex_);
  closing_ = true;
  changed_.SignalAll();
}

}  // namespace fsdpd
