// GPU activity recorder for step traces: kernels and copies from CUPTI; and power, clock and memory use from
// NVML, at 100 Hz. Active only while steps are traced. Data that the machine does not provide is omitted from
// traces and logged once.
//
// Record(true) before a traced step is submitted -> AddTo its timeline, on the thread that writes it ->
// Record(false). Thread-safe; Record() blocks only for CUPTI's own activation.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "fsdp/plan/predict/timeline.h"

namespace fsdpd {

class DeviceRecorder {
 public:
  static constexpr absl::Duration kPeriod = absl::Milliseconds(10);

  // `bus_id`: PCI bus id of CUDA device `device_index`.
  DeviceRecorder(int device_index, std::string bus_id);
  ~DeviceRecorder();

  void Record(bool on);

  // Waits until CUPTI has delivered all activity of the timeline, at most two seconds.
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
  bool records_kernels_ = false;  // Accessed by the trainer's thread.
  bool refused_kernels_ = false;

  Mutex mutex_;
  CondVar changed_;
  bool on_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Sample> samples_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // Started with the first recording.
};

}  // namespace fsdpd
