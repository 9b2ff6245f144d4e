// What a rank's GPU itself does while steps are traced, for their traces: kernels and copies by CUPTI, and by
// NVML, a hundred times a second, its power, its clock and what of its memory is in use. Nothing of it runs
// at other times. What the machine does not tell is left out of traces, and said once in the log.
//
// Record(true) before a traced step is submitted -> AddTo its timeline, on the thread that writes it ->
// Record(false). Thread-safe; Record() waits for nothing but CUPTI's own switch.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/nvml.h"
#include "fsdp/plan/predict/timeline.h"

namespace fsdpd {

class DeviceRecorder {
 public:
  static constexpr absl::Duration kPeriod = absl::Milliseconds(10);

  // `bus_id`: of the GPU that is CUDA's `device_index`.
  DeviceRecorder(int device_index, std::string bus_id);
  ~DeviceRecorder();

  void Record(bool on);

  // Waits until CUPTI has told of all of it, at most two seconds.
  void AddTo(Timeline* timeline);

 private:
  struct Sample {
    int64_t unix_nanos = 0;
    std::optional<double> power_watts;
    std::optional<double> sm_clock_hertz;
    std::optional<int64_t> used_bytes;
  };
  void Serve();

  const int device_index_;
  const std::string bus_id_;
  bool records_kernels_ = false;  // The trainer's.
  bool refused_kernels_ = false;

  Mutex mutex_;
  CondVar changed_;
  bool on_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Sample> samples_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // Once something is recorded.
};

}  // namespace fsdpd
