#include "agent/logs/step_records.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/log.h"
#include "base/process/text_files.h"

namespace fsdpd {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxLineBytes = 4 << 10;  // About 350 are used.
constexpr int64_t kBlockBytes = 64 << 10;
// Smallest `every` for which reading seeks to the next step instead of scanning.
constexpr int64_t kSeekFrom = 2048;
constexpr auto kWritePatience = std::chrono::seconds(2);

// Formats like protobuf JSON: the shortest text that parses to the same number.
void AppendNumber(std::string* line, absl::string_view name, double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  const std::string number = std::isnan(value)   ? "\"NaN\""
                             : std::isinf(value) ? (value > 0 ? "\"Infinity\"" : "\"-Infinity\"")
                                                 : std::string(text, end);
  absl::StrAppend(line, ",\"", name, "\":", number);
}

void AppendCount(std::string* line, absl::string_view name, int64_t value) {
  absl::StrAppend(line, ",\"", name, "\":", value);
}

std::string LineOf(int attempt, const v1::StepReport& report) {
  double communication_seconds = 0;
  for (const v1::OpTime& op : report.ops()) communication_seconds += op.seconds();
  std::string line = absl::StrCat("{\"step\":", report.step());
  AppendCount(&line, "attempt", attempt);
  AppendCount(&line, "unix_nanos", report.unix_nanos());
  AppendNumber(&line, "loss", report.loss());
  AppendNumber(&line, "grad_norm", report.grad_norm());
  AppendNumber(&line, "learning_rate", report.learning_rate());
  AppendNumber(&line, "step_seconds", report.step_seconds());
  AppendCount(&line, "tokens", report.tokens());
  AppendNumber(&line, "compute_seconds", report.compute_seconds());
  AppendNumber(&line, "communication_seconds", communication_seconds);
  AppendNumber(&line, "exposed_seconds", report.exposed_seconds());
  AppendNumber(&line, "data_wait_seconds", report.data_wait_seconds());
  AppendCount(&line, "peak_bytes", report.memory().peak_bytes());
  AppendCount(&line, "reserved_bytes", report.memory().reserved_bytes());
  AppendCount(&line, "device_mallocs", report.memory().device_mallocs());
  if (report.has_loss_scale()) AppendNumber(&line, "loss_scale", report.loss_scale());
  if (report.skipped()) absl::StrAppend(&line, ",\"skipped\":true");
  if (report.has_evaluation()) AppendNumber(&line, "evaluation_loss", report.evaluation().loss());
  return line + "}\n";
}

// Step of a line; 0 if the line is not a complete record.
int64_t StepOf(absl::string_view line) {
  int64_t step = 0;
  if (!absl::ConsumePrefix(&line, "{\"step\":") || !absl::EndsWith(line, "}")) return 0;
  return absl::SimpleAtoi(line.substr(0, line.find(',')), &step) && step > 0 ? step : 0;
}

struct Segment {
  int attempt = 0;
  int64_t began = 0;
  int64_t first = 0;
  int64_t last = 0;  // Set by LastStepOf().
  int64_t bytes = 0;
  std::string path;
};

std::string DirectoryOf(const std::string& work_dir, const std::string& job_id) {
  return absl::StrCat(work_dir, "/", job_id, "/steps");
}

bool ParseName(const std::string& name, Segment* segment) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
  if (parts.size() != 4 || parts[3] != "jsonl") return false;
  const auto number = [&](size_t part, const char* prefix, auto* value) {
    absl::string_view text = parts[part];
    return absl::ConsumePrefix(&text, prefix) && absl::SimpleAtoi(text, value) && *value > 0;
  };
  return number(0, "attempt-", &segment->attempt) && number(1, "began-", &segment->began) &&
         number(2, "from-", &segment->first);
}

// Segments of one attempt, or of all (0), sorted by attempt and step.
absl::StatusOr<std::vector<Segment>> SegmentsIn(const std::string& directory, int attempt) {
  std::vector<Segment> segments;
  std::error_code error;
  for (const fs::directory_entry& entry : EntriesIn(directory, &error)) {
    Segment segment;
    if (!ParseName(entry.path().filename(), &segment)) continue;
    if (attempt > 0 && segment.attempt != attempt) continue;
    segment.path = entry.path();
    std::error_code gone;
    segment.bytes = static_cast<int64_t>(entry.file_size(gone));
    if (!gone) segments.push_back(std::move(segment));
  }
  if (error && error != std::errc::no_such_file_or_directory)
    return absl::UnavailableError(absl::StrCat("cannot list ", directory, ": ", error.message()));
  std::sort(segments.begin(), segments.end(), [](const Segment& a, const Segment& b) {
    return std::tie(a.attempt, a.first) < std::tie(b.attempt, b.first);
  });
  return segments;
}

// Reader of complete lines, from the last Seek on.
class Lines {
 public:
  static absl::StatusOr<Lines> OpenFile(const std::string& path) {
    Lines lines;
    lines.path_ = path;
    lines.fd_ = UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat facts = {};
    if (!lines.fd_.valid() || fstat(lines.fd_.get(), &facts) != 0)
      return ErrnoStatus(absl::StrCat("cannot read ", path));
    lines.size_ = facts.st_size;
    return lines;
  }

  int64_t size() const { return size_; }
  void Seek(int64_t offset) {
    offset_ = offset;
    buffer_.clear();
    taken_ = 0;
  }
  // False at the end, where an incomplete line may remain. `*line` is valid until the next call.
  absl::StatusOr<bool> Next(absl::string_view* line) {
    for (;;) {
      const size_t end = buffer_.find('\n', taken_);
      if (end != std::string::npos) {
        *line = absl::string_view(buffer_).substr(taken_, end - taken_);
        taken_ = end + 1;
        return true;
      }
      if (buffer_.size() - taken_ > kMaxLineBytes)
        return absl::DataLossError(absl::StrCat(path_, ": not a step record"));
      buffer_.erase(0, taken_);
      taken_ = 0;
      std::string block(kBlockBytes, '\0');
      const ssize_t got = pread(fd_.get(), block.data(), block.size(), offset_);
      if (got < 0) return ErrnoStatus(absl::StrCat("cannot read ", path_));
      if (got == 0) return false;
      offset_ += got;
      buffer_.append(block, 0, static_cast<size_t>(got));
    }
  }
  // Seeks to the first line that begins after `offset`, or to 0.
  absl::Status SeekLine(int64_t offset) {
    Seek(offset);
    if (offset == 0) return absl::OkStatus();
    absl::string_view rest;
    return Next(&rest).status();
  }
  // The step of the next line; 0 at the end.
  absl::StatusOr<int64_t> NextStep() {
    absl::string_view line;
    FSDPD_ASSIGN_OR_RETURN(const bool more, Next(&line));
    return more ? StepOf(line) : 0;
  }

 private:
  std::string path_;
  UniqueFd fd_;
  int64_t size_ = 0, offset_ = 0;
  std::string buffer_;
  size_t taken_ = 0;  // Consumed bytes of buffer_.
};

// Binary search: seeks to a line at or before that of `step`, by at most one block.
absl::Status SeekStep(Lines* lines, int64_t step) {
  int64_t low = 0, high = lines->size();
  while (high - low > kBlockBytes) {
    const int64_t middle = low + (high - low) / 2;
    FSDPD_RETURN_IF_ERROR(lines->SeekLine(middle));
    FSDPD_ASSIGN_OR_RETURN(const int64_t there, lines->NextStep());
    (there != 0 && there < step ? low : high) = middle;
  }
  return lines->SeekLine(low);
}

// Last step of a segment; 0 if it has none.
absl::StatusOr<int64_t> LastStepOf(const Segment& segment) {
  FSDPD_ASSIGN_OR_RETURN(Lines lines, Lines::OpenFile(segment.path));
  FSDPD_RETURN_IF_ERROR(lines.SeekLine(std::max<int64_t>(0, lines.size() - 2 * kMaxLineBytes)));
  int64_t last = 0;
  for (;;) {
    FSDPD_ASSIGN_OR_RETURN(const int64_t step, lines.NextStep());
    if (step == 0) return last;
    last = step;
  }
}

struct Span {
  const Segment* segment = nullptr;
  int64_t first = 0, last = 0;
};

// The range to read of each segment. If several attempts made the same step, the newest attempt counts:
//
//   attempt 1   began-1:  steps 1..300   -> read 1..250
//   attempt 2   began-251: steps 251..   -> read 251..
std::vector<Span> SpansOf(const std::vector<Segment>& segments, const v1::RecordedSteps& ask) {
  std::vector<Span> spans;
  for (const Segment& segment : segments) {
    Span span{&segment, std::max(segment.first, ask.first()), std::min(segment.last, ask.last())};
    for (const Segment& later : segments) {
      if (later.attempt > segment.attempt && later.last > 0) span.last = std::min(span.last, later.began - 1);
    }
    if (span.first <= span.last) spans.push_back(span);
  }
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.first < b.first; });
  return spans;
}

absl::Status ReadSpan(const Span& span, const v1::RecordedSteps& ask, size_t most,
                      std::vector<StepRecords::Line>* found) {
  const int64_t every = std::max<int64_t>(1, ask.every());
  int64_t wanted = (span.first + every - 1) / every * every;
  if (wanted > span.last) return absl::OkStatus();
  FSDPD_ASSIGN_OR_RETURN(Lines lines, Lines::OpenFile(span.segment->path));
  FSDPD_RETURN_IF_ERROR(SeekStep(&lines, wanted));
  absl::string_view line;
  while (wanted <= span.last && found->size() < most) {
    FSDPD_ASSIGN_OR_RETURN(const bool more, lines.Next(&line));
    const int64_t step = more ? StepOf(line) : 0;
    if (step == 0) return absl::OkStatus();
    if (step < wanted) continue;
    found->push_back({step, std::string(line)});
    wanted += every;
    if (every >= kSeekFrom) FSDPD_RETURN_IF_ERROR(SeekStep(&lines, wanted));
  }
  return absl::OkStatus();
}

// Whether `path` still refers to the open file. After it was removed or renamed, readers do not find what is
// written to it.
bool IsAt(int fd, const std::string& path) {
  struct stat held = {}, there = {};
  if (stat(path.c_str(), &there) != 0) return errno != ENOENT && errno != ENOTDIR;
  return fstat(fd, &held) == 0 && held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

// Removes the oldest segments until a new one fits the limits.
void Prune(const std::string& directory, int attempt, const StepRecordLimits& limits) {
  const absl::StatusOr<std::vector<Segment>> segments = SegmentsIn(directory, attempt);
  if (!segments.ok()) return;
  int64_t bytes = limits.segment_bytes;
  for (const Segment& segment : *segments) bytes += segment.bytes;
  size_t count = segments->size() + 1;
  for (const Segment& segment : *segments) {
    if (bytes <= limits.attempt_bytes && count <= limits.attempt_segments) return;
    std::error_code ignored;  // Ignored: the next segment tries again.
    fs::remove(segment.path, ignored);
    bytes -= segment.bytes;
    --count;
  }
}

}  // namespace

StepRecords::StepRecords(std::string work_dir, std::function<void()> missed, StepRecordLimits limits)
    : work_dir_(std::move(work_dir)),
      missed_(std::move(missed)),
      limits_(limits),
      thread_([this] { Run(); }) {}

StepRecords::~StepRecords() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.SignalAll();
  thread_.join();
}

void StepRecords::Add(const AttemptId& id, const v1::StepReport& report) {
  if (report.step() < 1 || !CheckJobId(id.job_id).ok()) return;
  std::string line = LineOf(id.attempt, report);
  bool overrun, overrun_before;
  {
    MutexLock lock(&mutex_);
    overrun = waiting_.size() >= limits_.waiting;
    overrun_before = std::exchange(overrun_, overrun);
    if (!overrun) waiting_.push_back({id, report.step(), std::move(line)});
    if (!overrun) ++added_;
  }
  changed_.SignalAll();
  if (!overrun) return;
  missed_();
  if (!overrun_before) LogWarning("steps are not recorded %s error=the disk is too slow", ToString(id));
}

void StepRecords::Ended(const AttemptId& id) {
  MutexLock lock(&mutex_);
  waiting_.push_back({id, 0, ""});  // Not limited: at most one per attempt.
  ++added_;
  changed_.SignalAll();
}

void StepRecords::Run() {
  for (;;) {
    Waiting next;
    {
      MutexLock lock(&mutex_);
      while (waiting_.empty() && !stopping_) changed_.Wait(&mutex_);
      if (waiting_.empty()) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    Write(next);
    MutexLock lock(&mutex_);
    ++written_;
    changed_.SignalAll();
  }
}

void StepRecords::Write(const Waiting& next) {
  if (next.step == 0) {
    open_.erase(next.id);
    failing_.erase(next.id);
    return;
  }
  const absl::Status appended = Append(&open_[next.id], next);
  const bool failed_before = std::exchange(failing_[next.id], !appended.ok());
  if (appended.ok()) return;
  missed_();
  if (!failed_before) LogWarning("steps are not recorded %s error=%s", ToString(next.id), appended.message());
}

absl::Status StepRecords::Append(Open* open, const Waiting& next) {
  if (open->fd.valid() && !IsAt(open->fd.get(), open->path)) {
    Segment removed;
    ParseName(fs::path(open->path).filename(), &removed);
    LogWarning("step records were removed job=%s attempt=%d path=%s steps=%d", next.id.job_id,
               next.id.attempt, open->path, open->next_step - removed.first);
    for (int64_t step = removed.first; step < open->next_step; ++step) missed_();
    open->fd = UniqueFd();
  }
  if (!open->fd.valid() || open->next_step != next.step || open->bytes >= limits_.segment_bytes)
    FSDPD_RETURN_IF_ERROR(Begin(open, next));
  const ssize_t wrote = write(open->fd.get(), next.line.data(), next.line.size());
  if (wrote == static_cast<ssize_t>(next.line.size())) {
    open->next_step = next.step + 1;
    open->bytes += wrote;
    return absl::OkStatus();
  }
  const absl::Status failed =
      wrote < 0 ? ErrnoStatus("cannot write") : absl::ResourceExhaustedError("the disk is full");
  // Drop the incomplete line. Remove a segment without lines: empty ones would displace others at the limit.
  (void)!ftruncate(open->fd.get(), open->bytes);
  if (open->bytes == 0) unlink(open->path.c_str());
  open->fd = UniqueFd();
  return failed;
}

absl::Status StepRecords::Begin(Open* open, const Waiting& next) {
  const std::string directory = DirectoryOf(work_dir_, next.id.job_id);
  std::error_code ignored;  // Ignored: open() reports a better error.
  fs::create_directories(directory, ignored);
  if (open->began == 0) open->began = next.step;
  if (!open->looked) {
    // Another agent may have recorded earlier steps of the attempt: keep the `began` of its segments.
    FSDPD_ASSIGN_OR_RETURN(const std::vector<Segment> before, SegmentsIn(directory, next.id.attempt));
    if (!before.empty()) open->began = before.front().began;
    open->looked = true;
  }
  Prune(directory, next.id.attempt, limits_);
  open->path = absl::StrCat(directory, "/attempt-", next.id.attempt, ".began-", open->began, ".from-",
                            next.step, ".jsonl");
  open->fd = UniqueFd(::open(open->path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
  open->bytes = 0;
  return open->fd.valid() ? absl::OkStatus() : ErrnoStatus(open->path);
}

absl::StatusOr<std::vector<StepRecords::Line>> StepRecords::Read(const std::string& job_id, int attempt,
                                                                 const v1::RecordedSteps& ask) {
  {
    MutexLock lock(&mutex_);
    const int64_t until = added_;
    const auto deadline = std::chrono::steady_clock::now() + kWritePatience;
    while (written_ < until && std::chrono::steady_clock::now() < deadline)
      changed_.WaitFor(&mutex_, kWritePatience);
  }
  FSDPD_ASSIGN_OR_RETURN(std::vector<Segment> segments, SegmentsIn(DirectoryOf(work_dir_, job_id), attempt));
  std::vector<Line> lines;
  absl::Status unread;
  for (Segment& segment : segments) {
    // A segment that was removed meanwhile, or is unreadable, is a gap.
    const absl::StatusOr<int64_t> last = LastStepOf(segment);
    if (!last.ok() && !absl::IsNotFound(last.status())) unread = last.status();
    segment.last = last.value_or(0);
    if (segment.last == 0) continue;
    lines.push_back({0, absl::StrCat("{\"attempt\":", segment.attempt, ",\"began\":", segment.began,
                                     ",\"first\":", segment.first, ",\"last\":", segment.last, "}")});
  }
  if (lines.empty()) {
    if (!unread.ok()) return unread;
    const std::string whose =
        attempt > 0 ? ToString(AttemptId{job_id, attempt}) : absl::StrCat("job=", job_id);
    return absl::NotFoundError(absl::StrCat("this node has no steps of ", whose));
  }
  const size_t most = lines.size() + static_cast<size_t>(std::max(0, ask.max_records()));
  for (const Span& span : SpansOf(segments, ask)) FSDPD_RETURN_IF_ERROR(ReadSpan(span, ask, most, &lines));
  return lines;
}

}  // namespace fsdpd
