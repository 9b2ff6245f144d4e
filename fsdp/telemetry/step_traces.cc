#include "fsdp/telemetry/step_traces.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rank/trace_file.h"
#include "fsdp/checkpoint/format/durable_file.h"

namespace fsdpd {
namespace {

// Timelines that wait for the disk: those of one request.
constexpr size_t kMostWaiting = kMaxTracedSteps;

// Requested future steps, over all requests.
constexpr size_t kMostAsked = 4 * kMaxTracedSteps;

// Spikes with a snapshot: the first ones; usually one is enough.
constexpr int kMostSpikes = 4;

}  // namespace

StepTraces::StepTraces(Options options) : options_(std::move(options)) {}

StepTraces::~StepTraces() {
  {
    MutexLock lock(&mutex_);
    ending_ = true;
    waiting_.clear();
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void StepTraces::Ask(int64_t first, int64_t steps, bool memory) {
  if (first < 1 || first > std::numeric_limits<int64_t>::max() - kMaxTracedSteps) return;
  MutexLock lock(&mutex_);
  for (int64_t step = first; step - first < steps && step < first + kMaxTracedSteps; ++step) {
    if (asked_.size() < kMostAsked) asked_[step] |= memory;
  }
}

bool StepTraces::RecordsMemory() const {
  if (options_.memory) return true;
  MutexLock lock(&mutex_);
  return std::any_of(asked_.begin(), asked_.end(), [](const auto& asked) { return asked.second; });
}

bool StepTraces::TakesMemory(int64_t step, bool spike) {
  if (options_.memory_steps.count(step) != 0) return true;
  MutexLock lock(&mutex_);
  const auto asked = asked_.find(step);
  if (asked != asked_.end() && asked->second) return true;
  if (!options_.memory || !spike || spikes_ >= kMostSpikes) return false;
  ++spikes_;
  return true;
}

bool StepTraces::Expects(int64_t oldest, int64_t newest) const {
  const auto next = options_.steps.lower_bound(oldest);
  if (next != options_.steps.end() && *next <= newest + 1) return true;
  MutexLock lock(&mutex_);
  return !asked_.empty();
}

bool StepTraces::Takes(int64_t step) {
  std::map<int64_t, bool> missed;
  bool takes = options_.steps.count(step) != 0;
  {
    MutexLock lock(&mutex_);
    missed.insert(asked_.begin(), asked_.lower_bound(step));
    asked_.erase(asked_.begin(), asked_.lower_bound(step));
    if (auto asked = asked_.extract(step); !asked.empty()) {
      taken_.insert(std::move(asked));
      takes = true;
    }
  }
  for (const auto& [over, memory] : missed) {
    WrittenTrace written;
    written.step = over;
    written.asked = true;
    written.error = "the request arrived after the step had ended";
    Report(written);
  }
  return takes;
}

void StepTraces::Write(Timeline timeline, std::function<std::string()> memory_file,
                       std::function<void(Timeline*)> complete) {
  const int64_t step = timeline.step;
  Queue({step, std::move(timeline), std::move(memory_file), std::move(complete)});
}

void StepTraces::WriteMemory(int64_t step, std::function<std::string()> memory_file) {
  Queue({step, std::nullopt, std::move(memory_file)});
}

void StepTraces::Queue(Record record) {
  {
    MutexLock lock(&mutex_);
    if (const auto taken = taken_.extract(record.step); !taken.empty()) {
      record.asked = true;
      record.wants_memory = taken.mapped();
    }
    if (waiting_.size() < kMostWaiting) {
      waiting_.push_back(std::move(record));
      changed_.SignalAll();
      if (!thread_.joinable()) thread_ = std::thread([this] { Serve(); });
      return;
    }
  }
  WrittenTrace refused;
  refused.step = record.step;
  refused.asked = record.asked;
  const std::string error = absl::StrCat("the disk is too slow: ", kMostWaiting, " traces are queued");
  if (record.timeline.has_value()) refused.error = error;
  if (record.has_memory()) refused.memory.emplace().error = error;
  Report(refused);
}

bool StepTraces::AwaitWritten(absl::Duration longest) {
  const absl::Time deadline = Clock::Real()->Now() + longest;
  MutexLock lock(&mutex_);
  while (!waiting_.empty() || writing_) {
    const absl::Duration left = deadline - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) break;
    changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(left));
  }
  const bool all = waiting_.empty() && !writing_;
  waiting_.clear();
  return all;
}

void StepTraces::Serve() {
  for (;;) {
    Record record;
    {
      MutexLock lock(&mutex_);
      while (waiting_.empty() && !ending_) changed_.Wait(&mutex_);
      if (ending_) return;
      record = std::move(waiting_.front());
      waiting_.pop_front();
      writing_ = true;
    }
    WrittenTrace written;
    written.step = record.step;
    written.asked = record.asked;
    WriteFiles(&record, &written);
    Report(written);
    MutexLock lock(&mutex_);
    writing_ = false;
    changed_.SignalAll();
  }
}

// Includes what is known later, unless that exceeds the size limit: a step without its kernels is better than
// none.
std::string StepTraces::TextOf(Record* record) const {
  Timeline& timeline = *record->timeline;
  const size_t slices = timeline.slices.size(), tracks = timeline.tracks.size();
  if (record->complete != nullptr) record->complete(&timeline);
  std::string text = TraceJson({timeline}, options_.rank);
  if (static_cast<int64_t>(text.size()) <= kMaxTraceBytes || timeline.slices.size() == slices) return text;
  LogWarning("wrote a trace without device activities, which exceeded its size limit: step=%d bytes=%d",
             record->step, text.size());
  timeline.slices.resize(slices);
  timeline.tracks.resize(tracks);
  absl::StrAppend(&timeline.title, ", without the device's activities (too large)");
  return TraceJson({timeline}, options_.rank);
}

void StepTraces::WriteFiles(Record* record, WrittenTrace* written) {
  const auto write = [this](const std::string& name, const std::string& text, WrittenFile* file) {
    file->error = std::string(WriteFile(name, text, file).message());
  };
  if (record->timeline.has_value())
    write(TraceFileName(record->step, options_.rank), TextOf(record), written);
  if (!record->has_memory()) return;
  WrittenFile& memory = written->memory.emplace();
  if (record->memory_file != nullptr) {
    write(MemoryFileName(record->step, options_.rank), record->memory_file(), &memory);
  } else {
    memory.error = "the request arrived while the step was running";
  }
}

absl::Status StepTraces::WriteFile(const std::string& name, const std::string& text, WrittenFile* written) {
  if (options_.directory.empty()) {
    return absl::FailedPreconditionError("the agent did not provide a directory; upgrade the agent");
  }
  if (files_ >= kMaxTraceFiles) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the limit of ", kMaxTraceFiles, " traces per rank and attempt is reached"));
  }
  written->path = absl::StrCat(options_.directory, "/", name);
  written->bytes = static_cast<int64_t>(text.size());
  if (written->bytes > kMaxTraceBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("trace is too large (got ", written->bytes,
                                                     " bytes, want at most ", kMaxTraceBytes, ")"));
  }
  FSDPD_RETURN_IF_ERROR(ReplaceFile(options_.directory, name, text));
  ++files_;
  return absl::OkStatus();
}

void StepTraces::Report(const WrittenTrace& written) const {
  if (options_.on_written) options_.on_written(written);
}

}  // namespace fsdpd
