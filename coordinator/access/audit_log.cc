#include "coordinator/access/audit_log.h"

#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <utility>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/json_quote.h"
#include "base/log.h"
#include "base/mutex.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxWaiting = 10'000;  // Lines of about 300 bytes.
constexpr std::chrono::seconds kSlowWrite(10);

std::string DateText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
}

// O_NONBLOCK: opening a FIFO without a reader is an error instead of a wait.
int OpenToAppend(const std::string& path) {
  return open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0640);
}

int64_t SizeOf(int fd) {
  struct stat stat = {};
  return fstat(fd, &stat) == 0 ? stat.st_size : 0;
}

// False after the file was removed or renamed, even if a new file has its name.
bool IsAt(int fd, const std::string& path) {
  struct stat held = {}, there = {};
  if (stat(path.c_str(), &there) != 0) return errno != ENOENT;
  return fstat(fd, &held) == 0 && held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

}  // namespace

std::string ToJsonLine(const AuditRecord& record) {
  return absl::StrCat("{\"time\":\"", DateText(record.time), "\",\"who\":", JsonQuoted(record.who),
                      ",\"role\":", JsonQuoted(record.role), ",\"from\":", JsonQuoted(record.from),
                      ",\"method\":", JsonQuoted(record.method), ",\"object\":", JsonQuoted(record.object),
                      ",\"outcome\":", JsonQuoted(record.outcome),
                      record.revoked_serial.empty()
                          ? ""
                          : absl::StrCat(",\"revoked_serial\":", JsonQuoted(record.revoked_serial)),
                      record.left_out > 0 ? absl::StrCat(",\"left_out\":", record.left_out) : "", "}\n");
}

class AuditLog::File {
 public:
  File(std::string path, int64_t max_bytes, int fd)
      : path_(std::move(path)), max_bytes_(max_bytes), fd_(fd), bytes_(SizeOf(fd)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }

  void Push(std::string line);
  void Run();  // Until Close(), and all lines are written.
  // False if lines are left after kAuditCloseTimeout: the thread is blocked.
  bool Close();
  int64_t lost() const;

 private:
  // Only the writing thread accesses the file and its size.
  void Append(const std::string& line);
  void Lost(int64_t lines, const std::string& why);
  absl::Status WriteWhole(const std::string& line);
  absl::Status Rotate();

  const std::string path_;
  const int64_t max_bytes_;
  int fd_;               // -1 while it cannot be opened.
  int64_t bytes_;        // Size of the file.
  int64_t missing_ = 0;  // Lines lost since the last written line.
  std::string last_fault_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::string> waiting_ ABSL_GUARDED_BY(mutex_);
  int64_t overflowed_ ABSL_GUARDED_BY(mutex_) = 0;  // Not yet in missing_.
  int64_t lost_ ABSL_GUARDED_BY(mutex_) = 0;
  // Start of the current write, and its number of lines.
  std::chrono::steady_clock::time_point writing_since_ ABSL_GUARDED_BY(mutex_);
  size_t writing_ ABSL_GUARDED_BY(mutex_) = 0;
  bool slow_logged_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(const std::string& path, int64_t max_bytes) {
  const int fd = OpenToAppend(path);
  if (fd < 0) return ErrnoStatus(path);
  return std::unique_ptr<AuditLog>(new AuditLog(std::make_shared<File>(path, max_bytes, fd)));
}

AuditLog::AuditLog(std::shared_ptr<File> file)
    : file_(std::move(file)), thread_([file = file_] { file->Run(); }) {}

AuditLog::~AuditLog() {
  if (file_->Close()) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void AuditLog::Write(AuditRecord record) {
  if (record.unauthenticated) {
    const std::optional<int64_t> left_out =
        repeats_.Report(absl::StrCat(record.method, " ", record.outcome), record.time);
    if (!left_out.has_value()) return;
    record.left_out = *left_out;
  }
  file_->Push(ToJsonLine(record));
}

int64_t AuditLog::lost() const { return file_->lost(); }

void AuditLog::File::Push(std::string line) {
  size_t pending = 0;
  {
    MutexLock lock(&mutex_);
    if (waiting_.size() < kMaxWaiting) {
      waiting_.push_back(std::move(line));
    } else {
      ++overflowed_;
      ++lost_;
    }
    if (writing_ > 0 && std::chrono::steady_clock::now() - writing_since_ > kSlowWrite &&
        !std::exchange(slow_logged_, true))
      pending = writing_ + waiting_.size();
    changed_.SignalAll();
  }
  if (pending > 0) LogError("audit log does not respond path=%s pending_lines=%d", path_, pending);
}

bool AuditLog::File::Close() {
  const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(kAuditCloseTimeout);
  size_t pending = 0;
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
    for (auto now = std::chrono::steady_clock::now(); !ended_ && now < until;
         now = std::chrono::steady_clock::now())
      changed_.WaitFor(&mutex_, until - now);
    if (ended_) return true;
    pending = writing_ + waiting_.size();
  }
  LogError("audit log did not respond during shutdown path=%s pending_lines=%d", path_, pending);
  return false;
}

int64_t AuditLog::File::lost() const {
  MutexLock lock(&mutex_);
  return lost_;
}

void AuditLog::File::Run() {
  for (;;) {
    std::deque<std::string> lines;
    int64_t overflowed = 0;
    {
      MutexLock lock(&mutex_);
      if (std::exchange(writing_, 0) > 0) slow_logged_ = false;
      while (waiting_.empty() && !closing_) changed_.Wait(&mutex_);
      if (waiting_.empty()) {
        ended_ = true;
        changed_.SignalAll();
        return;
      }
      lines.swap(waiting_);
      overflowed = std::exchange(overflowed_, 0);
      writing_ = lines.size();
      writing_since_ = std::chrono::steady_clock::now();
    }
    for (const std::string& line : lines) Append(line);
    // The overflowed lines came after these.
    if (overflowed > 0) Lost(overflowed, "lines arrive faster than they can be written");
    if (fd_ >= 0) fdatasync(fd_);
  }
}

void AuditLog::File::Append(const std::string& line) {
  absl::Status status =
      bytes_ > 0 && bytes_ + static_cast<int64_t>(line.size()) > max_bytes_ ? Rotate() : absl::OkStatus();
  if (status.ok() && missing_ > 0) {
    status = WriteWhole(absl::StrCat("{\"lost_lines\":", missing_, "}\n"));
    if (status.ok()) missing_ = 0;
  }
  if (status.ok()) status = WriteWhole(line);
  if (status.ok()) {
    if (!std::exchange(last_fault_, "").empty()) LogInfo("audit log is writable again path=%s", path_);
    return;
  }
  {
    MutexLock lock(&mutex_);
    ++lost_;
  }
  Lost(1, std::string(status.message()));
}

void AuditLog::File::Lost(int64_t lines, const std::string& why) {
  missing_ += lines;
  if (std::exchange(last_fault_, why) != why) LogError("audit log lost lines error=%s", why);
}

// Removes a partial line: a line after it would be unreadable.
absl::Status AuditLog::File::WriteWhole(const std::string& line) {
  if (fd_ >= 0 && !IsAt(fd_, path_)) {
    LogWarning("audit log was removed or replaced, reopening it path=%s", path_);
    close(std::exchange(fd_, -1));
  }
  if (fd_ < 0) {
    fd_ = OpenToAppend(path_);
    if (fd_ < 0) return ErrnoStatus(path_);
    bytes_ = SizeOf(fd_);
  }
  ssize_t written = write(fd_, line.data(), line.size());
  if (written < 0 && errno == EAGAIN) {  // A full pipe.
    pollfd full = {fd_, POLLOUT, 0};
    poll(&full, 1, static_cast<int>(absl::ToInt64Milliseconds(kAuditCloseTimeout)));
    written = write(fd_, line.data(), line.size());
  }
  if (written == static_cast<ssize_t>(line.size())) {
    bytes_ += written;
    return absl::OkStatus();
  }
  const absl::Status status = ErrnoStatus(path_, written < 0 ? errno : ENOSPC);
  if (written > 0 && ftruncate(fd_, bytes_) != 0) bytes_ += written;
  return status;
}

absl::Status AuditLog::File::Rotate() {
  const auto name = [this](int number) { return number == 0 ? path_ : absl::StrCat(path_, ".", number); };
  for (int number = kMaxAuditFiles - 1; number >= 0; --number) {
    if (rename(name(number).c_str(), name(number + 1).c_str()) != 0 && errno != ENOENT) {
      return ErrnoStatus(absl::StrCat("rename ", name(number)));
    }
  }
  if (fd_ >= 0) close(fd_);
  bytes_ = 0;  // Counts the next file, even if it cannot be created yet: the rotation happens once.
  fd_ = OpenToAppend(path_);
  if (fd_ < 0) return ErrnoStatus(path_);
  bytes_ = SizeOf(fd_);
  return absl::OkStatus();
}

}  // namespace fsdpd
