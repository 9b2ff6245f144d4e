#include "coordinator/agents/log_relay.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

#include "base/api/log_readers.h"

namespace fsdpd {
namespace {

int64_t CostOf(const v1::LogLines::Line& line) {
  return LogLineCost(static_cast<int64_t>(line.line().size()));
}

absl::Status Gone(const std::string& node) {
  return absl::UnavailableError(
      absl::StrCat("the agent of node ", node, " is not connected; its logs are on that node"));
}

absl::Status EndOf(const std::string& node, const v1::LogLines& last) {
  if (last.error().empty()) return absl::OkStatus();
  const std::string text = absl::StrCat("node ", node, ": ", last.error());
  return last.no_such_log() ? absl::NotFoundError(text) : absl::InternalError(text);
}

}  // namespace

LogTail::~LogTail() { relay_->Release(bytes_); }

LogTail::Got LogTail::Next(absl::Duration timeout, std::deque<v1::LogLines::Line>* lines) {
  lines->clear();
  GrantReadBytes();
  MutexLock lock(&mutex_);
  if (lines_.empty() && open_sources_ > 0 && !overrun_) {
    changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(timeout));
  }
  for (Held& held : lines_) {
    taken_[held.request] += CostOf(held.line);
    lines->push_back(std::move(held.line));
  }
  lines_.clear();
  if (!lines->empty()) return Got::kLines;
  return open_sources_ == 0 || overrun_ ? Got::kEnd : Got::kNothingYet;
}

// Grants half a window at a time: one grant per line would double the number of messages.
void LogTail::GrantReadBytes() {
  std::map<int64_t, int64_t> grants;
  {
    MutexLock lock(&mutex_);
    for (const auto& [request, bytes] : taken_) {
      bytes_ -= bytes;
      relay_->Release(bytes);
      int64_t& written = written_[request];
      written += bytes;
      if (written >= source_window_bytes_ / 2) grants[request] = std::exchange(written, 0);
    }
    taken_.clear();
  }
  for (const auto& [request, bytes] : grants) relay_->Grant(request, bytes);
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
  int64_t bytes = 0;
  for (const v1::LogLines::Line& line : lines.lines()) bytes += CostOf(line);
  MutexLock lock(&mutex_);
  if (!overrun_ && !relay_->Reserve(bytes)) {
    overrun_ = true;
    Fail(absl::ResourceExhaustedError(
        "coordinator: too many unread log lines of all readers; read faster, or fewer ranks at a time"));
  }
  if (!overrun_) {
    bytes_ += bytes;
    for (const v1::LogLines::Line& line : lines.lines()) lines_.push_back({lines.request(), line});
  }
  changed_.SignalAll();
}

void LogTail::EndSource(const absl::Status& status) {
  MutexLock lock(&mutex_);
  --open_sources_;
  Fail(status);
  changed_.SignalAll();
}

bool LogTail::KeepOpenWithoutLog(const std::string& node) {
  MutexLock lock(&mutex_);
  if (awaits_logs_) without_log_.push_back(node);
  return awaits_logs_;
}

std::shared_ptr<LogTail> LogRelay::Open(const LogRequest& request, const std::vector<std::string>& nodes,
                                        bool awaits_logs) {
  const int64_t count = std::max<int64_t>(1, static_cast<int64_t>(nodes.size()));
  const int64_t window = std::max(limits_.tail_window_bytes / count, kMinLogSourceWindowBytes);
  const std::shared_ptr<LogTail> tail(new LogTail(this, window));
  {
    MutexLock lock(&tail->mutex_);
    tail->open_sources_ = static_cast<int>(nodes.size());
    tail->awaits_logs_ = awaits_logs;
  }
  for (const std::string& node : nodes) Ask(request, node, tail);
  return tail;
}

void LogRelay::RequestAgain(const LogRequest& request, const std::shared_ptr<LogTail>& tail, bool last) {
  std::vector<std::string> nodes;
  {
    MutexLock lock(&tail->mutex_);
    nodes.swap(tail->without_log_);
    if (last) tail->awaits_logs_ = false;
  }
  for (const std::string& node : nodes) Ask(request, node, tail);
}

bool LogRelay::Source::Sends(const v1::LogLines::Line& line) const {
  return (attempt == 0 || line.attempt() == attempt) && line.rank() >= first_rank &&
         line.rank() - first_rank < ranks;
}

// All steps are those of rank 0, and their records name the attempt (TakeStepLine()).
void LogRelay::LimitLines(const LogRequest& request, Source* source) {
  if (request.steps.has_value()) {
    source->ranks = 1;
    return;
  }
  source->attempt = request.attempt.attempt;
  for (const v1::Job::Placement& placement : request.placements) {
    if (placement.node() != source->node) continue;
    source->first_rank = placement.first_rank();
    source->ranks = placement.ranks();
  }
  if (request.rank < 0) return;
  source->first_rank = request.rank;
  source->ranks = 1;
}

void LogRelay::Ask(const LogRequest& request, const std::string& node, const std::shared_ptr<LogTail>& tail) {
  v1::CoordinatorMessage message;
  v1::ReadLogs* read = message.mutable_read_logs();
  read->set_job_id(request.attempt.job);
  read->set_attempt(request.attempt.attempt);
  read->set_rank(request.rank);
  read->set_follow(request.follow);
  read->set_tail_lines(request.tail_lines);
  if (request.traces.has_value()) *read->mutable_traces() = *request.traces;
  if (request.steps.has_value()) *read->mutable_steps() = *request.steps;
  read->set_evidence(request.evidence);
  const bool windows = nodes_->HasLogWindows(node);
  if (windows) read->set_window_bytes(tail->source_window_bytes_);
  Source asked = {node, tail, windows};
  LimitLines(request, &asked);
  const absl::StatusOr<int64_t> id = AddSource(std::move(asked));
  if (!id.ok()) return tail->EndSource(id.status());
  read->set_request(*id);
  if (nodes_->Send(node, std::move(message))) return;
  bool still_open;
  {
    MutexLock lock(&mutex_);
    const auto source = sources_.find(*id);
    still_open = source != sources_.end();  // NodeGone() may have ended it already.
    if (still_open) RemoveSource(source);
  }
  if (still_open) tail->EndSource(Gone(node));
}

absl::StatusOr<int64_t> LogRelay::AddSource(Source source) {
  MutexLock lock(&mutex_);
  int& readers = readers_[source.node];
  if (readers >= kMaxNodeReaders) {
    return absl::ResourceExhaustedError(
        absl::StrCat("node ", source.node, ": too many open readers of logs, traces and steps (got ",
                     readers + 1, ", want at most ", kMaxNodeReaders, "); retry when others have ended"));
  }
  ++readers;
  sources_[++requests_] = std::move(source);
  return requests_;
}

LogRelay::Sources::iterator LogRelay::RemoveSource(Sources::iterator source) {
  const auto readers = readers_.find(source->second.node);
  if (--readers->second == 0) readers_.erase(readers);
  return sources_.erase(source);
}

bool LogRelay::Reserve(int64_t bytes) {
  if (held_bytes_.fetch_add(bytes) + bytes <= limits_.all_tails_bytes) return true;
  held_bytes_ -= bytes;
  return false;
}

void LogRelay::Grant(int64_t request, int64_t bytes) {
  std::string node;
  {
    MutexLock lock(&mutex_);
    const auto it = sources_.find(request);
    // It has sent everything, or does not wait for grants.
    if (it == sources_.end() || !it->second.window) return;
    node = it->second.node;
  }
  v1::CoordinatorMessage message;
  message.mutable_log_grant()->set_request(request);
  message.mutable_log_grant()->set_bytes(bytes);
  nodes_->Send(node, std::move(message));
}

void LogRelay::SendStop(const std::string& node, int64_t request) {
  v1::CoordinatorMessage message;
  message.mutable_read_logs()->set_request(request);
  message.mutable_read_logs()->set_stop(true);
  nodes_->Send(node, std::move(message));
}

void LogRelay::Close(const std::shared_ptr<LogTail>& tail) {
  std::vector<std::pair<std::string, int64_t>> open;
  {
    MutexLock lock(&mutex_);
    for (const auto& [id, source] : sources_) {
      if (source.tail == tail) open.emplace_back(source.node, id);
    }
  }
  // Before their places are free: a new reader must not reach the agent first and exceed its limit.
  for (const auto& [node, id] : open) SendStop(node, id);
  MutexLock lock(&mutex_);
  for (auto it = sources_.begin(); it != sources_.end();)
    it = it->second.tail == tail ? RemoveSource(it) : std::next(it);
}

int LogRelay::Take(const std::string& node, const v1::LogLines& lines) {
  Source source;
  {
    MutexLock lock(&mutex_);
    const auto it = sources_.find(lines.request());
    if (it != sources_.end() && it->second.node == node) source = it->second;
    if (source.tail != nullptr && lines.end()) RemoveSource(it);
  }
  if (source.tail == nullptr) {  // The reader has gone, and the agent may not know.
    if (!lines.end()) SendStop(node, lines.request());
    return 0;
  }
  const auto is_forged = [&](const v1::LogLines::Line& line) { return !source.Sends(line); };
  const auto forged = static_cast<int>(std::count_if(lines.lines().begin(), lines.lines().end(), is_forged));
  if (forged == 0) {
    source.tail->Take(lines);
  } else {
    v1::LogLines own = lines;
    own.mutable_lines()->erase(
        std::remove_if(own.mutable_lines()->begin(), own.mutable_lines()->end(), is_forged),
        own.mutable_lines()->end());
    source.tail->Take(own);
  }
  if (!lines.end() || (lines.no_such_log() && source.tail->KeepOpenWithoutLog(node))) return forged;
  source.tail->EndSource(EndOf(node, lines));
  return forged;
}

void LogRelay::Fail(const std::string& node, int64_t request, const std::string& why) {
  SendStop(node, request);
  v1::LogLines last;
  last.set_request(request);
  last.set_end(true);
  last.set_error(why);
  Take(node, last);
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
      it = RemoveSource(it);
    }
  }
  for (const auto& tail : ended) tail->EndSource(Gone(node));
}

}  // namespace fsdpd
