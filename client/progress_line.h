// What a step report says to somebody who watches: pure functions from the report to a line of text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

constexpr double kNoEta = -1;

struct Progress {
  int64_t step = 0;
  int64_t total_steps = 0;
  double loss = 0;
  double tokens_per_second = 0;
  double step_seconds = 0;
  double data_wait_seconds = 0;  // Before it.
  // Share of communication's time, each kind by itself, that is no exposed time of the step; below 0 without
  // communication.
  double overlap = -1;
  int64_t peak_bytes = 0;
  double eta_seconds = 0;  // kNoEta: of a job that has ended.
};

// `typical_step_seconds`: what the remaining steps are expected to take; 0 takes this step's time.
Progress ProgressOf(const v1::StepReport& report, int64_t total_steps, double typical_step_seconds);

// "step 20/200  loss 4.8312  tok/s 12.3 k  step 165 ms  overlap 84%  peak 61.2 MiB  eta 30 s"; of a step that
// waited for its data "step 165 ms (waited 2 s for data)".
std::string ProgressLine(const Progress& progress);

// The same with a bar, in less than `width` columns: a full line would wrap and could not be drawn over. What
// does not fit is left out, least wanted first.
std::string ProgressBar(const Progress& progress, int width);

// A bar for stages of unknown length, of which `number` (from 1) has begun: "[===>      ] 4/9  what", in less
// than `width` columns.
std::string StageBar(int number, int of, const std::string& what, int width);

std::string OverlapText(double overlap);  // "84%", "-" below 0.

// All that was seen of an attempt, for its summary. The first two steps warm caches and allocators up and are
// left out of times when there are more. Bounded: after a million steps the rest is not kept.
class StepHistory {
 public:
  void Add(const v1::StepReport& report);
  void Clear() { *this = StepHistory(); }

  size_t steps() const { return step_seconds_.size(); }
  double median_step_seconds() const;
  double tokens_per_second() const;  // At the median step.
  double overlap() const;            // Below 0 without communication.
  // For data, of all steps together.
  double data_wait_seconds() const { return data_wait_seconds_; }

 private:
  std::vector<double> step_seconds_;
  int64_t tokens_ = 0;
  double comm_seconds_ = 0, exposed_seconds_ = 0, data_wait_seconds_ = 0;
};

}  // namespace fsdpd
