#include "fsdp/telemetry/step_traces.h"

#include <absl/strings/str_cat.h>

#include <limits>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/trace_file.h"
#include "fsdp/checkpoint/durable_file.h"

namespace fsdpd {
namespace {

// Timelines that the disk is behind with: those of one ask.
constexpr size_t kMostWaiting = kMaxTracedSteps;

// Steps that were asked for and are not there yet, whoever asked.
constexpr size_t kMostAsked = 4 * kMaxTracedSteps;

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

void StepTraces::Ask(int64_t first, int64_t steps) {
  if (first < 1 || first > std::numeric_limits<int64_t>::max() - kMaxTracedSteps) return;
  MutexLock lock(&mutex_);
  for (int64_t step = first; step - first < steps && step < first + kMaxTracedSteps; ++step) {
    if (asked_.size() < kMostAsked) asked_.insert(step);
  }
}

bool StepTraces::Takes(int64_t step) {
  std::set<int64_t> missed;
  bool takes = options_.steps.count(step) != 0;
  {
    MutexLock lock(&mutex_);
    missed.insert(asked_.begin(), asked_.lower_bound(step));
    asked_.erase(asked_.begin(), asked_.lower_bound(step));
    if (asked_.erase(step) != 0) {
      taken_.insert(step);
      takes = true;
    }
  }
  for (const int64_t over : missed) {
    WrittenTrace written;
    written.step = over;
    written.asked = true;
    written.error = "it was over when the rank heard that it was to be traced";
    Tell(written);
  }
  return takes;
}

void StepTraces::Write(Timeline timeline) {
  WrittenTrace refused;
  refused.step = timeline.step;
  {
    MutexLock lock(&mutex_);
    if (waiting_.size() < kMostWaiting) {
      waiting_.push_back(std::move(timeline));
      changed_.SignalAll();
      if (!thread_.joinable()) thread_ = std::thread([this] { Serve(); });
      return;
    }
    refused.asked = taken_.erase(refused.step) != 0;
  }
  refused.error = absl::StrCat("the disk is behind with ", kMostWaiting, " traces before it");
  Tell(refused);
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
    Timeline timeline;
    WrittenTrace written;
    {
      MutexLock lock(&mutex_);
      while (waiting_.empty() && !ending_) changed_.Wait(&mutex_);
      if (ending_) return;
      timeline = std::move(waiting_.front());
      waiting_.pop_front();
      writing_ = true;
      written.asked = taken_.erase(timeline.step) != 0;
    }
    written.step = timeline.step;
    const absl::Status status = WriteFile(timeline, &written);
    written.error = std::string(status.message());
    Tell(written);
    MutexLock lock(&mutex_);
    writing_ = false;
    changed_.SignalAll();
  }
}

absl::Status StepTraces::WriteFile(const Timeline& timeline, WrittenTrace* written) {
  if (options_.folder.empty()) {
    return absl::FailedPreconditionError("its agent is of a release that names no folder for it");
  }
  if (files_ >= kMaxTraceFiles) {
    return absl::ResourceExhaustedError(absl::StrCat("the rank has written ", kMaxTraceFiles,
                                                     " traces in this attempt, which is all it may"));
  }
  const std::string name = TraceFileName(timeline.step, options_.rank);
  written->path = absl::StrCat(options_.folder, "/", name);
  const std::string json = TraceJson({timeline}, options_.rank);
  written->bytes = static_cast<int64_t>(json.size());
  if (written->bytes > kMaxTraceBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it would have ", written->bytes, " bytes, and a trace may have ", kMaxTraceBytes));
  }
  FSDPD_RETURN_IF_ERROR(ReplaceFile(options_.folder, name, json));
  ++files_;
  return absl::OkStatus();
}

void StepTraces::Tell(const WrittenTrace& written) const {
  if (options_.on_written) options_.on_written(written);
}

}  // namespace fsdpd
