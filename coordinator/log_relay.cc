#include "coordinator/log_relay.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

namespace fsdpd {
namespace {

absl::Status Gone(const std::string& node) {
  return absl::UnavailableError(
      absl::StrCat("the agent of node ", node, " is not connected; its logs are on that node"));
}

}  // namespace

LogTail::Got LogTail::Next(absl::Duration timeout, std::deque<v1::LogLines::Line>* lines) {
  MutexLock lock(&mutex_);
  if (lines_.empty() && open_sources_ > 0 && !overrun_) {
    changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(timeout));
  }
  lines->clear();
  lines->swap(lines_);
  bytes_ = 0;
  changed_.SignalAll();
  if (!lines->empty()) return Got::kLines;
  return open_sources_ == 0 || overrun_ ? Got::kEnd : Got::kNothingYet;
}

absl::Status LogTail::status() const {
  MutexLock lock(&mutex_);
  return status_;
}

void LogTail::Fail(const absl::Status& status) {
  const auto weight = [](const absl::Status& s) {
    return s.ok() ? 0 : s.code() == absl::StatusCode::kNotFound ? 1 : 2;
  };
  if (weight(status) > weight(status_)) status_ = status;
}

void LogTail::Take(const v1::LogLines& lines) {
  MutexLock lock(&mutex_);
  if (bytes_ >= limits_.tail_bytes && !overrun_)
    changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(limits_.hold_back));
  if (bytes_ >= limits_.tail_bytes && !overrun_) {
    overrun_ = true;
    Fail(absl::ResourceExhaustedError(
        "log lines come faster than they are read; ask for fewer with tail_lines"));
  }
  if (!overrun_) {
    for (const v1::LogLines::Line& line : lines.lines()) {
      bytes_ += line.line().size() + sizeof(line);
      lines_.push_back(line);
    }
  }
  changed_.SignalAll();
}

void LogTail::EndSource(const absl::Status& status) {
  MutexLock lock(&mutex_);
  --open_sources_;
  Fail(status);
  changed_.SignalAll();
}

std::shared_ptr<LogTail> LogRelay::Open(const LogRequest& request, const std::vector<std::string>& nodes) {
  const std::shared_ptr<LogTail> tail(new LogTail(limits_));
  {
    MutexLock lock(&tail->mutex_);
    tail->open_sources_ = static_cast<int>(nodes.size());
  }
  for (const std::string& node : nodes) {
    v1::CoordinatorMessage message;
    v1::ReadLogs* read = message.mutable_read_logs();
    read->set_job_id(request.attempt.job);
    read->set_attempt(request.attempt.attempt);
    read->set_rank(request.rank);
    read->set_follow(request.follow);
    read->set_tail_lines(request.tail_lines);
    int64_t id;
    {
      MutexLock lock(&mutex_);
      id = ++requests_;
      sources_[id] = {node, tail};
    }
    read->set_request(id);
    if (nodes_->Send(node, std::move(message))) continue;
    bool still_open;
    {
      MutexLock lock(&mutex_);
      still_open = sources_.erase(id) == 1;  // NodeGone() may have ended it already.
    }
    if (still_open) tail->EndSource(Gone(node));
  }
  return tail;
}

void LogRelay::StopFollowing(const std::shared_ptr<LogTail>& tail) {
  std::vector<std::pair<std::string, int64_t>> open;
  {
    MutexLock lock(&mutex_);
    for (const auto& [id, source] : sources_) {
      if (source.tail == tail) open.emplace_back(source.node, id);
    }
  }
  for (const auto& [node, id] : open) {
    v1::CoordinatorMessage message;
    message.mutable_read_logs()->set_request(id);
    message.mutable_read_logs()->set_stop(true);
    nodes_->Send(node, std::move(message));
  }
}

void LogRelay::Close(const std::shared_ptr<LogTail>& tail) {
  StopFollowing(tail);
  MutexLock lock(&mutex_);
  for (auto it = sources_.begin(); it != sources_.end();) {
    it = it->second.tail == tail ? sources_.erase(it) : std::next(it);
  }
}

void LogRelay::Take(const std::string& node, const v1::LogLines& lines) {
  std::shared_ptr<LogTail> tail;
  {
    MutexLock lock(&mutex_);
    const auto it = sources_.find(lines.request());
    if (it == sources_.end() || it->second.node != node) return;  // The reader has gone.
    tail = it->second.tail;
    if (lines.end()) sources_.erase(it);
  }
  tail->Take(lines);
  if (!lines.end()) return;
  tail->EndSource(lines.error().empty()
                      ? absl::OkStatus()
                      : absl::NotFoundError(absl::StrCat("node ", node, ": ", lines.error())));
}

void LogRelay::NodeGone(const std::string& node) {
  std::vector<std::shared_ptr<LogTail>> ended;
  {
    MutexLock lock(&mutex_);
    for (auto it = sources_.begin(); it != sources_.end();) {
      if (it->second.node != node) {
        ++it;
        continue;
      }
      ended.push_back(it->second.tail);
      it = sources_.erase(it);
    }
  }
  for (const auto& tail : ended) tail->EndSource(Gone(node));
}

}  // namespace fsdpd
