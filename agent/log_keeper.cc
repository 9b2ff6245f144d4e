#include "agent/log_keeper.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/strip.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "agent/log_lines.h"
#include "base/errno_status.h"
#include "base/limits.h"
#include "base/log.h"

namespace fsdpd {
namespace {

constexpr size_t kReadBytes = 256 << 10;  // One message's worth; well under kMaxRpcBytes when escaped.
constexpr auto kFollowInterval = std::chrono::milliseconds(100);
constexpr size_t kMaxRequests = 256;  // Open follows; each holds descriptors.

int64_t SizeOf(int fd) {
  struct stat facts = {};
  return fstat(fd, &facts) == 0 ? facts.st_size : 0;
}

std::string AttemptFolder(const std::string& work_dir, const AttemptId& id) {
  return absl::StrCat(work_dir, "/", id.job_id, "/attempt-", id.attempt);
}

// The ranks that have a log in `folder`, in order.
std::vector<int> RanksIn(const std::string& folder) {
  std::vector<int> ranks;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string file = entry.path().filename();
    absl::string_view name = file;
    int rank = 0;
    if (absl::ConsumePrefix(&name, "rank-") && absl::ConsumeSuffix(&name, ".log") &&
        absl::SimpleAtoi(name, &rank)) {
      ranks.push_back(rank);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace

struct LogKeeper::Request {
  struct File {
    RankId id;
    UniqueFd fd;
    int64_t offset = 0;
    LineSplitter splitter;
    bool told_of_loss = false;  // That lines are lost from here on; once is enough.
    bool finished = false;
  };
  v1::ReadLogs ask;
  std::vector<File> files;
};

LogKeeper::LogKeeper(std::string work_dir, Deliver deliver, std::function<void(absl::Duration)> lost)
    : work_dir_(std::move(work_dir)),
      deliver_(std::move(deliver)),
      loss_(work_dir_, std::move(lost)),
      thread_([this] { Serve(); }) {}

LogKeeper::~LogKeeper() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.SignalAll();
  thread_.join();
}

absl::Status LogKeeper::Prepare(const std::string& work_dir) {
  std::error_code error;
  std::filesystem::create_directories(work_dir, error);
  if (error)
    return absl::PermissionDeniedError(absl::StrCat("cannot make ", work_dir, ": ", error.message()));
  const std::string probe = absl::StrCat(work_dir, "/.write-probe");
  const UniqueFd fd(open(probe.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid()) return absl::PermissionDeniedError(absl::StrCat("cannot write in ", ErrnoText(work_dir)));
  unlink(probe.c_str());
  return absl::OkStatus();
}

std::string LogKeeper::PathOf(const RankId& id) const {
  return absl::StrCat(AttemptFolder(work_dir_, id.of), "/rank-", id.rank, ".log");
}

void LogKeeper::AddNotice(const RankId& id, const std::string& words) {
  const absl::Status added = AppendNotice(PathOf(id), words);
  if (!added.ok()) LogWarning("%s: a notice is not in its log: %s", ToString(id), added.message());
}

UniqueFd LogKeeper::OpenForRank(const RankId& id) {
  const std::string path = PathOf(id);
  std::error_code ignored;  // The open that follows says it better.
  std::filesystem::create_directories(AttemptFolder(work_dir_, id.of), ignored);
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) LogWarning("nothing that %s logs is kept: %s", ToString(id), ErrnoText(path));
  loss_.Watch(path);
  {
    MutexLock lock(&mutex_);
    live_.insert(id);
  }
  return fd.valid() ? std::move(fd) : UniqueFd(open("/dev/null", O_WRONLY | O_CLOEXEC));
}

void LogKeeper::RankEnded(const RankId& id) {
  loss_.Unwatch(PathOf(id));
  {
    MutexLock lock(&mutex_);
    live_.erase(id);
  }
  changed_.SignalAll();
}

bool LogKeeper::IsLive(const RankId& id) const {
  MutexLock lock(&mutex_);
  return live_.count(id) != 0;
}

std::vector<std::string> LogKeeper::Tail(const RankId& id, int lines) const {
  std::vector<std::string> tail;
  const UniqueFd fd(open(PathOf(id).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return tail;
  const int64_t size = SizeOf(fd.get());
  const int64_t max_bytes = static_cast<int64_t>(lines) * (kMaxLogLineBytes + 1);
  const int64_t begin = TailOffset(fd.get(), size, lines, max_bytes);
  std::string bytes(static_cast<size_t>(size - begin), '\0');
  const ssize_t got = pread(fd.get(), bytes.data(), bytes.size(), begin);
  LineSplitter splitter;
  splitter.Append(absl::string_view(bytes.data(), static_cast<size_t>(std::max<ssize_t>(got, 0))), &tail);
  splitter.Finish(&tail);
  if (std::string notice = loss_.Notice(); !notice.empty()) tail.push_back(std::move(notice));
  return tail;
}

void LogKeeper::Read(const v1::ReadLogs& ask) {
  {
    MutexLock lock(&mutex_);
    asked_.push_back(ask);
  }
  changed_.SignalAll();
}

void LogKeeper::DropAll() {
  MutexLock lock(&mutex_);
  asked_.clear();
  requests_.clear();
}

void LogKeeper::Fail(int64_t request, const std::string& error) {
  v1::LogLines answer;
  answer.set_request(request);
  answer.set_end(true);
  answer.set_error(error);
  deliver_(std::move(answer));
}

std::shared_ptr<LogKeeper::Request> LogKeeper::Open(const v1::ReadLogs& ask, std::string* error) const {
  const AttemptId attempt{ask.job_id(), ask.attempt()};
  if (const absl::Status status = CheckJobId(ask.job_id()); !status.ok()) {
    *error = std::string(status.message());
    return nullptr;
  }
  auto request = std::make_shared<Request>();
  request->ask = ask;
  std::vector<int> ranks = {ask.rank()};
  if (ask.rank() < 0) ranks = RanksIn(AttemptFolder(work_dir_, attempt));
  for (const int rank : ranks) {
    Request::File file;
    file.id = {attempt, rank};
    file.fd = UniqueFd(open(PathOf(file.id).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file.fd.valid()) continue;
    if (ask.tail_lines() > 0) {
      file.offset = TailOffset(file.fd.get(), SizeOf(file.fd.get()), ask.tail_lines(),
                               std::numeric_limits<int64_t>::max());
    }
    request->files.push_back(std::move(file));
  }
  if (!request->files.empty()) return request;
  const std::string who = ask.rank() < 0 ? ToString(attempt) : ToString(RankId{attempt, ask.rank()});
  *error = absl::StrCat("this node has no log of ", who);
  return nullptr;
}

// Delivers what there is, at most one message per file. False when the stream has gone; `*done` when nothing
// more will come.
bool LogKeeper::ServeOnce(Request* request, bool* progress, bool* done) {
  *done = true;
  std::string bytes(kReadBytes, '\0');
  for (Request::File& file : request->files) {
    if (file.finished) continue;
    // Asked before the read: a rank that ends in between has written all that this read or the next one
    // finds.
    const bool live = request->ask.follow() && IsLive(file.id);
    const ssize_t got = pread(file.fd.get(), bytes.data(), bytes.size(), file.offset);
    std::vector<std::string> lines;
    *progress |= got > 0;
    if (got > 0) {
      file.offset += got;
      file.splitter.Append(absl::string_view(bytes.data(), static_cast<size_t>(got)), &lines);
    }
    file.finished = got <= 0 && !live;
    if (file.finished) file.splitter.Finish(&lines);
    std::string notice;
    if (got <= 0 && IsLive(file.id)) {
      notice = loss_.Notice();
      const bool told = std::exchange(file.told_of_loss, !notice.empty());
      if (told) notice.clear();
    }
    *done &= file.finished;
    if (lines.empty() && notice.empty()) continue;
    v1::LogLines message;
    message.set_request(request->ask.request());
    const auto add = [&](std::string line) {
      v1::LogLines::Line* entry = message.add_lines();
      entry->set_rank(file.id.rank);
      entry->set_attempt(file.id.of.attempt);
      entry->set_line(std::move(line));
      return entry;
    };
    for (std::string& line : lines) add(std::move(line));
    if (!notice.empty()) add(std::move(notice))->set_notice(true);
    if (!deliver_(std::move(message))) return false;
  }
  if (*done) {
    v1::LogLines end;
    end.set_request(request->ask.request());
    end.set_end(true);
    return deliver_(std::move(end));
  }
  return true;
}

// Takes in what was asked since the last turn; false when it is time to stop.
bool LogKeeper::Admit(bool idle) {
  std::vector<v1::ReadLogs> asked;
  {
    MutexLock lock(&mutex_);
    while (!stopping_ && asked_.empty() && requests_.empty()) changed_.Wait(&mutex_);
    if (!stopping_ && asked_.empty() && idle) changed_.WaitFor(&mutex_, kFollowInterval);
    if (stopping_) return false;
    asked.swap(asked_);
  }
  for (const v1::ReadLogs& ask : asked) {
    std::string error;
    std::shared_ptr<Request> opened;
    if (!ask.stop()) opened = Open(ask, &error);
    {
      MutexLock lock(&mutex_);
      requests_.erase(ask.request());
      if (opened != nullptr && requests_.size() >= kMaxRequests) {
        error = absl::StrCat("this node already reads logs for ", kMaxRequests, " requests");
      } else if (opened != nullptr) {
        requests_[ask.request()] = opened;
      }
    }
    if (!error.empty()) Fail(ask.request(), error);
  }
  return true;
}

void LogKeeper::Serve() {
  bool idle = false;
  while (Admit(idle)) {
    std::vector<std::shared_ptr<Request>> requests;
    {
      MutexLock lock(&mutex_);
      for (const auto& [id, request] : requests_) requests.push_back(request);
    }
    idle = true;
    for (const std::shared_ptr<Request>& request : requests) {
      bool done = false, progress = false;
      const bool delivered = ServeOnce(request.get(), &progress, &done);
      idle &= !progress;
      if (delivered && !done) continue;
      MutexLock lock(&mutex_);
      const auto it = requests_.find(request->ask.request());
      if (it != requests_.end() && it->second == request) requests_.erase(it);
    }
  }
}

}  // namespace fsdpd
