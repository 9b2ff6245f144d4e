// Progress of a running job as one line of text. Pure functions of step reports.
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
  double grad_norm = 0;
  double learning_rate = 0;
  double tokens_per_second = 0;
  double step_seconds = 0;
  double data_wait_seconds = 0;  // Before the step.
  // 1 - exposed communication time / total communication time, with all collectives summed; negative without
  // communication.
  double overlap = -1;
  int64_t peak_bytes = 0;
  double eta_seconds = 0;  // kNoEta: the job has ended.
};

// `typical_step_seconds`: expected time of each remaining step; 0: the time of this step.
Progress ProgressOf(const v1::StepReport& report, int64_t total_steps, double typical_step_seconds);

// "step 20/200  loss 4.8312  norm 0.97  lr 1.00e-03  tok/s 12.3 k  step 165 ms  overlap 84%  peak 61.2 MiB
// eta 30 s". If the step waited for data: "step 165 ms (waited 2 s for data)".
std::string ProgressLine(const Progress& progress);

// The same with a progress bar, in fewer than `width` columns, because a full line would wrap and could not
// be redrawn. Fields that do not fit are omitted, the least important first.
std::string ProgressBar(const Progress& progress, int width);

// Progress bar for stages of unknown duration, in fewer than `width` columns. `number` (from 1) is the stage
// in progress: "[===>      ] 4/9  what".
std::string StageBar(int number, int of, const std::string& what, int width);

std::string OverlapText(double overlap);  // "84%"; "-" if negative.

// Statistics of an attempt's steps, for its summary. Times exclude the first two steps, which warm up caches
// and allocators, if there are more. Bounded: step times after the first million are not stored.
class StepHistory {
 public:
  void Add(const v1::StepReport& report);
  void Clear() { *this = StepHistory(); }

  size_t steps() const { return step_seconds_.size(); }
  double median_step_seconds() const;
  double tokens_per_second() const;  // At the median step.
  double overlap() const;            // Negative without communication.
  // Total over all steps.
  double data_wait_seconds() const { return data_wait_seconds_; }

 private:
  std::vector<double> step_seconds_;
  int64_t tokens_ = 0;
  double comm_seconds_ = 0, exposed_seconds_ = 0, data_wait_seconds_ = 0;
};

}  // namespace fsdpd
