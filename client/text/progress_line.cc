#include "client/text/progress_line.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>

#include "base/text.h"

namespace fsdpd {
namespace {

constexpr size_t kWarmUpSteps = 2;
constexpr double kMinShownWaitSeconds = 1e-3;  // Shorter waits for data are not shown.
constexpr size_t kMaxHistory = 1'000'000;

struct CommTime {
  double seconds = 0;
  double exposed_seconds = 0;
};

CommTime CommOf(const v1::StepReport& report) {
  CommTime time;
  for (const v1::OpTime& op : report.ops()) time.seconds += op.seconds();
  time.exposed_seconds =
      report.exposed_seconds();  // Counts time once while several collectives are in flight.
  return time;
}

double OverlapOf(double seconds, double exposed_seconds) {
  return seconds > 0 ? std::min(1.0, std::max(0.0, 1 - exposed_seconds / seconds)) : -1;
}

std::string Counter(const Progress& p) { return absl::StrCat(p.step, "/", p.total_steps); }

std::string DataWaitText(const Progress& p) {
  if (p.data_wait_seconds < kMinShownWaitSeconds) return "";
  return absl::StrCat(" (waited ", HumanSeconds(p.data_wait_seconds), " for data)");
}

// Fields after the step counter, in display order.
enum Part { kLoss, kNorm, kRate, kTokens, kStep, kOverlap, kPeak, kEta, kParts };

std::string TextOf(const Progress& p, Part part) {
  switch (part) {
    case kLoss:
      return absl::StrFormat("loss %.4f", p.loss);
    case kNorm:
      return absl::StrFormat("norm %.3g", p.grad_norm);
    case kRate:
      return absl::StrFormat("lr %.2e", p.learning_rate);
    case kTokens:
      return absl::StrCat("tok/s ", HumanCount(p.tokens_per_second));
    case kStep:
      return absl::StrCat("step ", HumanSeconds(p.step_seconds), DataWaitText(p));
    case kOverlap:
      return absl::StrCat("overlap ", OverlapText(p.overlap));
    case kPeak:
      return absl::StrCat("peak ", HumanBytes(p.peak_bytes));
    case kEta:
      return absl::StrCat("eta ", HumanSeconds(p.eta_seconds));
    case kParts:
      break;
  }
  return "";
}

std::string Bar(const Progress& p, int cells) {
  const double share =
      p.total_steps > 0 ? static_cast<double>(p.step) / static_cast<double>(p.total_steps) : 0;
  const int filled = std::min(cells, std::max(0, static_cast<int>(share * cells)));
  std::string bar = std::string(filled, '=') + std::string(cells - filled, ' ');
  if (filled > 0 && filled < cells) bar[filled - 1] = '>';
  return absl::StrCat("[", bar, "]");
}

}  // namespace

Progress ProgressOf(const v1::StepReport& report, int64_t total_steps, double typical_step_seconds) {
  Progress p;
  p.step = report.step();
  p.total_steps = total_steps;
  p.loss = report.loss();
  p.grad_norm = report.grad_norm();
  p.learning_rate = report.learning_rate();
  p.step_seconds = report.step_seconds();
  p.data_wait_seconds = report.data_wait_seconds();
  if (p.step_seconds > 0) p.tokens_per_second = static_cast<double>(report.tokens()) / p.step_seconds;
  const CommTime comm = CommOf(report);
  p.overlap = OverlapOf(comm.seconds, comm.exposed_seconds);
  p.peak_bytes = report.memory().peak_bytes();
  const double each = typical_step_seconds > 0 ? typical_step_seconds : p.step_seconds;
  p.eta_seconds = each * static_cast<double>(std::max<int64_t>(0, total_steps - p.step));
  return p;
}

std::string ProgressLine(const Progress& progress) {
  std::string line = absl::StrCat("step ", Counter(progress));
  for (int part = 0; part < kParts; ++part) {
    if (part == kEta && progress.eta_seconds == kNoEta) continue;
    absl::StrAppend(&line, "  ", TextOf(progress, static_cast<Part>(part)));
  }
  return line;
}

std::string ProgressBar(const Progress& progress, int width) {
  static constexpr Part kByImportance[] = {kLoss, kTokens, kEta, kOverlap, kPeak, kStep, kNorm, kRate};
  const int columns = width - 1;
  std::string head = absl::StrCat(Bar(progress, width >= 110 ? 24 : 10), " ", Counter(progress));
  if (static_cast<int>(head.size()) > columns) head = Counter(progress);
  if (static_cast<int>(head.size()) > columns) return "";
  int left = columns - static_cast<int>(head.size());
  std::string texts[kParts];
  for (const Part part : kByImportance) {
    std::string text = absl::StrCat("  ", TextOf(progress, part));
    if (static_cast<int>(text.size()) > left) break;
    left -= static_cast<int>(text.size());
    texts[part] = std::move(text);
  }
  return absl::StrCat(head, absl::StrJoin(texts, ""));
}

std::string StageBar(int number, int of, const std::string& what, int width) {
  Progress done;
  done.step = number - 1;
  done.total_steps = of;
  const std::string line = absl::StrCat(Bar(done, 10), " ", number, "/", of, "  ", what);
  return line.substr(0, static_cast<size_t>(std::max(0, width - 1)));
}

std::string OverlapText(double overlap) {
  return overlap < 0 ? "-" : absl::StrFormat("%.0f%%", overlap * 100);
}

void StepHistory::Add(const v1::StepReport& report) {
  if (step_seconds_.size() >= kMaxHistory) return;
  // Drop the sums of the warm-up steps once there are steady-state steps.
  if (step_seconds_.size() == kWarmUpSteps) comm_seconds_ = exposed_seconds_ = data_wait_seconds_ = 0;
  step_seconds_.push_back(report.step_seconds());
  tokens_ = report.tokens();
  const CommTime comm = CommOf(report);
  comm_seconds_ += comm.seconds;
  exposed_seconds_ += comm.exposed_seconds;
  data_wait_seconds_ += report.data_wait_seconds();
}

double StepHistory::median_step_seconds() const {
  const size_t skip = step_seconds_.size() > kWarmUpSteps ? kWarmUpSteps : 0;
  std::vector<double> sorted(step_seconds_.begin() + skip, step_seconds_.end());
  if (sorted.empty()) return 0;
  const auto middle = sorted.begin() + sorted.size() / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  if (sorted.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(sorted.begin(), middle)) / 2;
}

double StepHistory::tokens_per_second() const {
  const double seconds = median_step_seconds();
  return seconds > 0 ? static_cast<double>(tokens_) / seconds : 0;
}

double StepHistory::overlap() const { return OverlapOf(comm_seconds_, exposed_seconds_); }

}  // namespace fsdpd
