#include "agent/logs/log_keeper.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <tuple>
#include <utility>

#include "agent/hang/hang_evidence.h"
#include "agent/logs/log_lines.h"
#include "agent/logs/removed_files.h"
#include "base/api/log_readers.h"
#include "base/check.h"
#include "base/errno_status.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/process/text_files.h"
#include "base/rank/trace_file.h"

namespace fsdpd {
namespace {

constexpr int64_t kReadBytes = 256 << 10;  // One message; well below kMaxRpcBytes even when escaped.
// Content remembered of a log: its first bytes, to find what is unchanged after a truncation, and the bytes
// before the offset, to detect that it was truncated and has since grown beyond the offset.
constexpr size_t kHeadBytes = 4 << 10, kLastBytes = 64;
constexpr auto kFollowInterval = std::chrono::milliseconds(100);

int64_t SizeOf(int fd) {
  struct stat facts = {};
  return fstat(fd, &facts) == 0 ? facts.st_size : 0;
}

// Reads up to `size` bytes; fewer at the end of the file or after an error.
std::string BytesAt(int fd, int64_t begin, size_t size) {
  std::string bytes(size, '\0');
  const ssize_t got = pread(fd, bytes.data(), size, begin);
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return bytes;
}

std::string AttemptDirectory(const std::string& work_dir, const AttemptId& id) {
  return absl::StrCat(work_dir, "/", id.job_id, "/attempt-", id.attempt);
}

// The process that holds the lock, as it has written into the lock file.
std::string HolderOf(int lock) {
  char text[16] = {};
  int pid = 0;
  if (pread(lock, text, sizeof text - 1, 0) <= 0 || !absl::SimpleAtoi(text, &pid)) return "unknown pid";
  return absl::StrCat("pid ", pid);
}

// The rank of the request; -1: all ranks of its attempt.
RankId IdOf(const v1::ReadLogs& ask) { return {{ask.job_id(), ask.attempt()}, ask.rank()}; }

// Names of the entries of `directory`; empty if it does not exist.
absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const std::filesystem::directory_entry& entry : EntriesIn(directory, &error))
    names.push_back(entry.path().filename());
  if (error && error != std::errc::no_such_file_or_directory)
    return absl::UnavailableError(ErrnoText(absl::StrCat("cannot list ", directory), error.value()));
  return names;
}

// Ranks with a file rank-R`suffix` in `directory`, ascending.
absl::StatusOr<std::vector<int>> RanksIn(const std::string& directory, absl::string_view suffix) {
  FSDPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(directory));
  std::vector<int> ranks;
  for (absl::string_view name : names) {
    int rank = 0;
    if (absl::ConsumePrefix(&name, "rank-") && absl::ConsumeSuffix(&name, suffix) &&
        absl::SimpleAtoi(name, &rank)) {
      ranks.push_back(rank);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

struct TraceOf {
  int64_t step = 0;
  int rank = 0;
};

// Traces in `directory`, by step and rank.
absl::StatusOr<std::vector<TraceOf>> TracesIn(const std::string& directory) {
  FSDPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(directory));
  std::vector<TraceOf> traces;
  for (const std::string& name : names) {
    TraceOf trace;
    if (ParseTraceFileName(name, &trace.step, &trace.rank)) traces.push_back(trace);
  }
  std::sort(traces.begin(), traces.end(), [](const TraceOf& a, const TraceOf& b) {
    return std::tie(a.step, a.rank) < std::tie(b.step, b.rank);
  });
  return traces;
}

}  // namespace

struct LogKeeper::LogFile {
  struct Waiting {
    std::string line;
    bool notice = false;
    int64_t step = 0;  // Step of a step record.
  };
  RankId id;
  int64_t step = 0;  // Step of a trace; 0 for a log.
  std::string path;
  UniqueFd fd;  // Opened only while reading, for files that were written completely.
  int64_t offset = 0;
  std::string head;  // First bytes of the log, up to kHeadBytes of what was read.
  std::string last;  // Last bytes before `offset`.
  LineSplitter splitter;
  std::deque<Waiting> lines;  // Read but not sent.
  int64_t taken = 0;          // Lines before `offset`; -1 if not read from the beginning.
  bool loss_noticed = false;  // A loss notice was sent for the current loss.
  bool finished = false;      // No more to read.

  void Pass(absl::string_view bytes) {
    if (static_cast<int64_t>(head.size()) == offset)
      absl::StrAppend(&head, bytes.substr(0, kHeadBytes - head.size()));
    absl::StrAppend(&last, bytes.substr(bytes.size() - std::min(bytes.size(), kLastBytes)));
    last.erase(0, last.size() - std::min(last.size(), kLastBytes));
    offset += static_cast<int64_t>(bytes.size());
  }
  void Take(std::vector<std::string> more) {
    if (taken >= 0) taken += static_cast<int64_t>(more.size());
    for (std::string& line : more) lines.push_back({std::move(line)});
  }
};

struct LogKeeper::Request {
  v1::ReadLogs ask;
  int64_t credit = 0;  // Bytes that may be sent, for a request with a window.
  size_t first = 0;    // Index of the file to serve first: the one after that which used up the credit.
  bool progress = false;
  std::vector<LogFile> files;

  bool has_window() const { return ask.window_bytes() > 0; }
  bool of_whole_files() const { return ask.has_traces() || ask.evidence(); }
  bool may_send() const { return !has_window() || credit > 0; }
  AttemptId attempt() const { return IdOf(ask).of; }
  bool Wants(int rank) const { return ask.rank() < 0 || ask.rank() == rank; }
  LogFile* AddFile(int rank) {
    files.emplace_back().id = {attempt(), rank};
    return &files.back();
  }
  // Bytes per read. With a window, about its size, and at least one line: unread data stays in the file.
  size_t ReadBytes() const {
    if (!has_window()) return kReadBytes;
    return static_cast<size_t>(std::clamp<int64_t>(credit, kMaxLogLineBytes, kReadBytes));
  }
};

LogKeeper::LogKeeper(std::string work_dir, Deliver deliver, std::function<void(absl::Duration)> lost,
                     StepRecords* steps, int64_t max_log_bytes, InternalErrors errors)
    : work_dir_(std::move(work_dir)),
      deliver_(std::move(deliver)),
      steps_(steps),
      errors_(std::move(errors)),
      loss_(work_dir_, std::move(lost)),
      bound_(max_log_bytes, [this](const std::string& log) { loss_.Removed(log); }),
      thread_([this] { Serve(); }) {}

LogKeeper::~LogKeeper() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.SignalAll();
  thread_.join();
}

absl::StatusOr<UniqueFd> LogKeeper::Prepare(const std::string& work_dir) {
  std::error_code error;
  std::filesystem::create_directories(work_dir, error);
  if (error)
    return absl::PermissionDeniedError(
        absl::StrCat("--work-dir ", work_dir, ": cannot be created: ", error.message(), " [FILE_ERROR]"));
  const std::string path = absl::StrCat(work_dir, "/LOCK");
  UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  // LOCK may exist, so opening it does not prove that files can be created.
  const std::string probe = absl::StrCat(work_dir, "/.write-probe");
  const UniqueFd fd(open(probe.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!lock.valid() || !fd.valid())
    return absl::PermissionDeniedError(
        absl::StrCat("--work-dir ", work_dir, ": not writable: ", strerror(errno), " [FILE_ERROR]"));
  unlink(probe.c_str());
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(absl::StrCat("cannot lock ", path));
    return absl::FailedPreconditionError(absl::StrCat("--work-dir ", work_dir, ": locked by another agent (",
                                                      HolderOf(lock.get()),
                                                      "); use a different directory [WORK_DIR_IN_USE]"));
  }
  // The pid is for the error message only; the lock is held in the kernel. A full disk omits it.
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(lock.get(), 0) != 0 ||
      pwrite(lock.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    LogWarning("failed to write the pid into the lock file path=%s error=%s", path, strerror(errno));
  }
  return lock;
}

std::string LogKeeper::PathOf(const RankId& id) const {
  return absl::StrCat(AttemptDirectory(work_dir_, id.of), "/rank-", id.rank, ".log");
}

std::string LogKeeper::DirectoryOf(const AttemptId& id) const {
  const std::string directory = AttemptDirectory(work_dir_, id);
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(directory, error);
  return error ? directory : absolute.string();
}

void LogKeeper::AddNotice(const RankId& id, const std::string& words) {
  const absl::Status added = AppendNotice(PathOf(id), words);
  if (!added.ok())
    LogWarning("failed to append a notice to the log %s error=%s", ToString(id), added.message());
}

absl::StatusOr<UniqueFd> LogKeeper::OpenForRank(const RankId& id) {
  const std::string path = PathOf(id);
  std::error_code ignored;  // Ignored: open() reports a better error.
  std::filesystem::create_directories(AttemptDirectory(work_dir_, id.of), ignored);
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid())
    LogWarning("cannot open the log; output of the rank is discarded %s error=%s", ToString(id),
               ErrnoText(path));
  loss_.Watch(path);
  bound_.Watch(path);
  {
    MutexLock lock(&mutex_);
    live_.insert(id);
  }
  if (fd.valid()) return fd;
  fd = UniqueFd(open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus("/dev/null");
  return fd;
}

void LogKeeper::RankEnded(const RankId& id) {
  loss_.Unwatch(PathOf(id));
  bound_.Unwatch(PathOf(id));
  MutexLock lock(&mutex_);
  live_.erase(id);
  changed_.SignalAll();
}

bool LogKeeper::IsLive(const RankId& id) const {
  MutexLock lock(&mutex_);
  return live_.count(id) != 0;
}

std::vector<std::string> LogKeeper::Tail(const RankId& id, int lines) const {
  std::vector<std::string> tail;
  const UniqueFd fd(open(PathOf(id).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid() && errno != ENOENT)
    tail.push_back(absl::StrCat("[fsdpd-agent: the log cannot be read: ", strerror(errno), "]"));
  if (!fd.valid()) return tail;
  const int64_t size = SizeOf(fd.get());
  const int64_t max_bytes =
      std::min(static_cast<int64_t>(lines) * (kMaxLogLineBytes + 1), size - FrontOf(PathOf(id)).bytes);
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
  MutexLock lock(&mutex_);
  asked_.push_back(ask);
  changed_.SignalAll();
}

void LogKeeper::Grant(const v1::LogGrant& grant) {
  MutexLock lock(&mutex_);
  if (requests_.count(grant.request()) == 0) return;
  granted_.push_back(grant);
  changed_.SignalAll();
}

void LogKeeper::DropAll() {
  MutexLock lock(&mutex_);
  ++drops_;
  asked_.clear();
  granted_.clear();
  requests_.clear();
}

void LogKeeper::Fail(int64_t request, const absl::Status& why) {
  v1::LogLines answer;
  answer.set_request(request);
  answer.set_end(true);
  answer.set_error(std::string(why.message()));
  answer.set_no_such_log(absl::IsNotFound(why));
  deliver_(std::move(answer));
}

absl::StatusOr<std::shared_ptr<LogKeeper::Request>> LogKeeper::Open(const v1::ReadLogs& ask) const {
  FSDPD_RETURN_IF_ERROR(CheckJobId(ask.job_id()));
  auto request = std::make_shared<Request>();
  request->ask = ask;
  request->credit = ask.window_bytes();
  FSDPD_RETURN_IF_ERROR(ask.has_traces()  ? FindTraces(request.get())
                        : ask.has_steps() ? FindSteps(request.get())
                        : ask.evidence()  ? FindEvidence(request.get())
                                          : FindLogs(request.get()));
  return request;
}

absl::Status LogKeeper::FindLogs(Request* request) const {
  const v1::ReadLogs& ask = request->ask;
  const AttemptId attempt = request->attempt();
  std::vector<int> ranks = {ask.rank()};
  if (ask.rank() < 0) {
    FSDPD_ASSIGN_OR_RETURN(ranks, RanksIn(AttemptDirectory(work_dir_, attempt), ".log"));
  }
  for (const int rank : ranks) {
    LogFile file;
    file.id = {attempt, rank};
    file.path = PathOf(file.id);
    file.fd = UniqueFd(open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file.fd.valid() && errno != ENOENT) return ErrnoStatus(absl::StrCat("cannot read ", file.path));
    if (!file.fd.valid()) continue;
    if (ask.tail_lines() > 0) {
      const int64_t size = SizeOf(file.fd.get()), front = FrontOf(file.path).bytes;
      file.offset = TailOffset(file.fd.get(), size, ask.tail_lines(), size - front);
      // Fewer lines than requested may remain; start at 0, so that the reader gets the notice about dropped
      // ones.
      if (file.offset == front) file.offset = 0;
      if (file.offset > 0) file.taken = -1;
      file.head = BytesAt(file.fd.get(), 0, std::min<size_t>(kHeadBytes, file.offset));
    }
    request->files.push_back(std::move(file));
  }
  AddRemoved(request, "log", ".log");
  if (!request->files.empty()) return absl::OkStatus();
  const std::string object = ask.rank() < 0 ? ToString(attempt) : ToString(RankId{attempt, ask.rank()});
  return absl::NotFoundError(absl::StrCat("this node has no log of ", object));
}

// A notice in place of each file that was asked for and removed.
void LogKeeper::AddRemoved(Request* request, absl::string_view what, absl::string_view suffix) const {
  for (const int rank : RanksRemoved(work_dir_, request->attempt(), suffix)) {
    const auto is_of_rank = [rank](const LogFile& file) { return file.id.rank == rank; };
    if (!request->Wants(rank)) continue;
    if (std::any_of(request->files.begin(), request->files.end(), is_of_rank)) continue;
    LogFile* const file = request->AddFile(rank);
    file->finished = true;
    file->lines.push_back({RemovalNotice(what, file->id), /*notice=*/true});
  }
}

// Finds the requested traces. They are complete when they appear, so these files do not grow.
absl::Status LogKeeper::FindTraces(Request* request) const {
  const v1::StepRange& asked = request->ask.traces();
  const std::string directory = DirectoryOf(request->attempt());
  FSDPD_ASSIGN_OR_RETURN(const std::vector<TraceOf> traces, TracesIn(directory));
  for (const TraceOf& trace : traces) {
    if (trace.step < asked.first() || trace.step > asked.last() || !request->Wants(trace.rank)) continue;
    LogFile* const file = request->AddFile(trace.rank);
    file->step = trace.step;
    file->path = absl::StrCat(directory, "/", TraceFileName(trace.step, trace.rank));
  }
  if (!request->files.empty()) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("this node does not have the trace of ", ToString(request->attempt())));
}

// Finds hang evidence. Each file is renamed when complete and replaced by a later hang.
absl::Status LogKeeper::FindEvidence(Request* request) const {
  const AttemptId attempt = request->attempt();
  FSDPD_ASSIGN_OR_RETURN(const std::vector<int> ranks,
                         RanksIn(AttemptDirectory(work_dir_, attempt), kEvidenceSuffix));
  for (const int rank : ranks) {
    if (request->Wants(rank)) request->AddFile(rank)->path = EvidencePath(PathOf({attempt, rank}));
  }
  AddRemoved(request, "hang evidence", kEvidenceSuffix);
  if (!request->files.empty()) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("this node has no hang evidence of ", ToString(attempt)));
}

// Reads one page of step records, which fits in memory.
absl::Status LogKeeper::FindSteps(Request* request) const {
  const v1::ReadLogs& ask = request->ask;
  if (steps_ == nullptr) return absl::NotFoundError("this node does not record steps");
  FSDPD_ASSIGN_OR_RETURN(std::vector<StepRecords::Line> lines,
                         steps_->Read(ask.job_id(), ask.attempt(), ask.steps()));
  LogFile* const file = request->AddFile(0);
  file->finished = true;
  for (StepRecords::Line& line : lines)
    file->lines.push_back({std::move(line.json), /*notice=*/false, line.step});
  return absl::OkStatus();
}

// If the lines at `offset` were dropped, adds a notice and moves on to the first remaining line. False if
// none were dropped.
bool LogKeeper::SkipDropped(LogFile* file) const {
  const LogFront front = FrontOf(file->path);
  if (file->offset >= front.bytes) return false;
  std::vector<std::string> torn;
  file->splitter.Finish(&torn);
  file->Take(std::move(torn));
  const int64_t lines = file->taken < 0 ? -1 : std::max<int64_t>(0, front.lines - file->taken);
  file->lines.push_back({bound_.Notice(front.bytes - file->offset, lines), /*notice=*/true});
  file->offset = front.bytes;
  file->last.clear();
  file->taken = front.lines;
  return true;
}

// Whether the log was truncated and has grown beyond `offset` again: the bytes before `offset` differ.
bool LogKeeper::WasRewritten(const LogFile& file) {
  const int64_t begin = file.offset - static_cast<int64_t>(file.last.size());
  const std::string bytes = BytesAt(file.fd.get(), begin, file.last.size());
  if (bytes == file.last) return false;
  // Dropped bytes read as zeros; compare only the others.
  const size_t dropped = std::clamp<int64_t>(FrontOf(file.path).bytes - begin, 0, bytes.size());
  return bytes.substr(dropped) != file.last.substr(dropped);
}

// Restarts reading after a truncation. The unchanged beginning was delivered before; the rank may already
// have appended to it, in the middle of a line or with a line that begins like an earlier one, so only whole
// lines of it count as delivered.
void LogKeeper::RestartAfterTruncation(LogFile* file) {
  std::vector<std::string> torn;
  file->splitter.Finish(&torn);
  file->Take(std::move(torn));
  file->lines.push_back({"[fsdpd-agent: the log was truncated here]", /*notice=*/true});
  const std::string now = BytesAt(file->fd.get(), 0, file->head.size());
  const auto end = std::mismatch(now.begin(), now.end(), file->head.begin()).first;
  std::string same(now.begin(), end);
  if (static_cast<int64_t>(same.size()) < SizeOf(file->fd.get())) same.resize(same.rfind('\n') + 1);
  file->offset = static_cast<int64_t>(same.size());
  file->taken = std::count(same.begin(), same.end(), '\n');
  file->head = std::move(same);
  file->last.clear();
}

// Opens a file that was complete when the request began. So a missing file is not NOT_FOUND, which would mean
// that the node never had it.
absl::Status LogKeeper::OpenWhole(LogFile* file) {
  if (!file->fd.valid()) file->fd = UniqueFd(open(file->path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  return file->fd.valid() ? absl::OkStatus()
                          : absl::UnavailableError(ErrnoText(absl::StrCat("cannot read ", file->path)));
}

// Reads the next data of a file once all earlier lines were sent; at the end of a log, adds a notice if lines
// are being lost. A trace or evidence file stays open only while there is more of it.
absl::Status LogKeeper::ReadMore(Request* request, LogFile* file) {
  if (file->finished || !file->lines.empty()) return absl::OkStatus();
  const bool whole = request->of_whole_files();
  if (whole) FSDPD_RETURN_IF_ERROR(OpenWhole(file));
  // Before the read: if the rank ends in between, this read or the next one finds all it wrote.
  const bool live = !whole && IsLive(file->id);
  std::string bytes(request->ReadBytes(), '\0');
  const ssize_t got = pread(file->fd.get(), bytes.data(), bytes.size(), file->offset);
  if (got < 0) return ErrnoStatus(absl::StrCat("cannot read ", file->path));
  request->progress |= got > 0 || whole;
  // After the read: data that was dropped before it ended is known by now.
  if (!whole && got > 0 && SkipDropped(file)) return absl::OkStatus();
  if (!whole && (got > 0 ? WasRewritten(*file) : SizeOf(file->fd.get()) < file->offset)) {
    RestartAfterTruncation(file);
    request->progress = true;
    return absl::OkStatus();
  }
  bytes.resize(static_cast<size_t>(got));
  std::vector<std::string> lines;
  if (whole) file->offset += got;
  if (!whole) file->Pass(bytes);
  file->splitter.Append(bytes, &lines);
  file->finished = got == 0 && !(request->ask.follow() && live);
  if (file->finished) file->splitter.Finish(&lines);
  if (file->finished && whole) file->fd = UniqueFd();
  file->Take(std::move(lines));
  if (got > 0 || !live) return absl::OkStatus();
  std::string notice = loss_.Notice();
  const bool noticed = std::exchange(file->loss_noticed, !notice.empty());
  if (!notice.empty() && !noticed) file->lines.push_back({std::move(notice), /*notice=*/true});
  return absl::OkStatus();
}

// Builds one message of the waiting lines, up to the window. Empty if nothing may be sent.
v1::LogLines LogKeeper::NextLines(Request* request, LogFile* file) {
  v1::LogLines message;
  message.set_request(request->ask.request());
  while (!file->lines.empty() && request->may_send()) {
    LogFile::Waiting next = std::move(file->lines.front());
    file->lines.pop_front();
    request->credit -= LogLineCost(static_cast<int64_t>(next.line.size()));
    v1::LogLines::Line* entry = message.add_lines();
    entry->set_rank(file->id.rank);
    entry->set_attempt(file->id.of.attempt);
    entry->set_step(std::max(file->step, next.step));
    entry->set_line(std::move(next.line));
    entry->set_notice(next.notice);
  }
  return message;
}

// Delivers what is available within the window, at most one message per file. False if the stream has ended;
// sets `*done` if no more data will come.
bool LogKeeper::ServeOnce(Request* request, bool* progress, bool* done) {
  request->progress = *done = false;
  const size_t files = request->files.size(), first = request->first;
  for (size_t turn = 0; turn < files && request->may_send(); ++turn) {
    const size_t at = (first + turn) % files;
    LogFile* file = &request->files[at];
    if (const absl::Status read = ReadMore(request, file); !read.ok()) {
      *done = true;
      Fail(request->ask.request(), read);
      return true;
    }
    v1::LogLines message = NextLines(request, file);
    if (!request->may_send() && !request->of_whole_files()) request->first = (at + 1) % files;
    request->progress |= message.lines_size() > 0;
    const bool any = message.lines_size() > 0;
    if (any && !deliver_(std::move(message))) return false;
    // One file after the other: a request may be of thousands.
    if (request->of_whole_files() && (any || !file->finished)) break;
  }
  *progress = request->progress;
  *done = std::all_of(request->files.begin(), request->files.end(),
                      [](const LogFile& file) { return file.finished && file.lines.empty(); });
  if (!*done) return true;
  v1::LogLines end;
  end.set_request(request->ask.request());
  end.set_end(true);
  return deliver_(std::move(end));
}

absl::Status LogKeeper::Begin(const v1::ReadLogs& ask, int64_t drops) {
  std::shared_ptr<Request> opened;
  if (!ask.stop()) {
    FSDPD_ASSIGN_OR_RETURN(opened, Open(ask));
  }
  MutexLock lock(&mutex_);
  if (drops != drops_) return absl::OkStatus();  // The stream was lost while the files were opened.
  requests_.erase(ask.request());
  if (opened == nullptr) return absl::OkStatus();
  if (requests_.size() >= kMaxNodeReaders) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this node already reads logs for ", kMaxNodeReaders, " requests"));
  }
  requests_[ask.request()] = opened;
  return absl::OkStatus();
}

// Starts the requests and applies the grants that arrived since the last turn; false if it is time to stop.
bool LogKeeper::Admit(bool idle) {
  std::vector<v1::ReadLogs> asked;
  int64_t drops = 0;
  {
    MutexLock lock(&mutex_);
    while (!stopping_ && asked_.empty() && requests_.empty()) changed_.Wait(&mutex_);
    if (!stopping_ && asked_.empty() && granted_.empty() && idle) changed_.WaitFor(&mutex_, kFollowInterval);
    if (stopping_) return false;
    asked.swap(asked_);
    drops = drops_;
    for (const v1::LogGrant& grant : granted_) {
      const auto it = requests_.find(grant.request());
      if (it != requests_.end()) it->second->credit += grant.bytes();
    }
    granted_.clear();
  }
  for (const v1::ReadLogs& ask : asked) {
    absl::Status begun;
    const absl::Status caught = errors_.Catch(IdOf(ask), [&] { begun = Begin(ask, drops); });
    begun.Update(caught);
    if (!begun.ok()) Fail(ask.request(), begun);
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
      bool done = false, progress = false, delivered = false;
      const absl::Status served =
          errors_.Catch(IdOf(request->ask), [&] { delivered = ServeOnce(request.get(), &progress, &done); });
      if (!served.ok()) Fail(request->ask.request(), served);
      idle &= !progress;
      if (delivered && !done) continue;
      MutexLock lock(&mutex_);
      const auto it = requests_.find(request->ask.request());
      if (it != requests_.end() && it->second == request) requests_.erase(it);
    }
  }
}

}  // namespace fsdpd
