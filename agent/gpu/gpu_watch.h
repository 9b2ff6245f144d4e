// Monitor of the GPUs of this node through NVML, sampled ten times per second on its own thread, so that
// neither a rank nor the agent waits for the driver. It adds energy and clock rate to step reports and
// exports per-GPU series in /metrics. Values that NVML does not provide, and a GPU whose driver hangs, have
// no series.
//
//   make_shared -> Start -> Stop;  Launched, Stepped, Ended and Collect at any time
//
// `device` in a series is the label that fsdpd_rank_info has ("cuda:3"). Series about jobs also have the
// labels of the job and rank on this GPU, both empty while none runs. Counters of the GPU itself do not: they
// continue across jobs.
//
// Thread-safe.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>
#include <prometheus/metric_family.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/launch/attempt.h"
#include "agent/metrics/running_total.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/process/metric.h"
#include "base/process/nvml.h"
#include "proto/fsdpd/v1/preflight.pb.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

class GpuWatch : public std::enable_shared_from_this<GpuWatch> {
 public:
  static constexpr absl::Duration kPeriod = absl::Milliseconds(100);

  static constexpr absl::Duration kLongestStop = absl::Seconds(1);

  // `clock` must outlive this object and a sampling thread that is blocked in the driver.
  GpuWatch(std::string node, Clock* clock) : node_(std::move(node)), clock_(clock) {}

  // Starts the sampling thread, which runs until Stop() and logs why GPUs cannot be read. Call once.
  void Start();
  // Stops the sampling thread. A thread that is blocked in the driver is abandoned. Idempotent.
  void Stop();

  // Called by the thread; public for tests. Opens the GPUs that CUDA_VISIBLE_DEVICES shows to this process,
  // which are those of its ranks. Errors: those of Nvml::Open and VisibleGpus.
  absl::Status Open();
  // Reads each GPU once. REQUIRES: Open() was OK.
  void Sample();

  // Assigns CUDA device `device` to the rank.
  void Launched(int device, const RankId& id);
  // Adds energy and clock rate of the step that `report` describes. No-op if they are unknown.
  void Stepped(int device, v1::StepReport* report);
  // Adds the state of the device, and what it did from `begin` to `end` (wall time). No-op where that is
  // unknown.
  void Describe(int device, v1::PreflightDevice* described) const;
  void Ran(int device, absl::Time begin, absl::Time end, v1::PreflightDevice* described) const;
  // Removes the rank from the device, unless another one was assigned since.
  void Ended(int device, const RankId& id);
  // Memory in use by all processes, as read after `since` (of Clock::Now()). Empty: not read since.
  std::optional<int64_t> UsedBytes(int device, absl::Time since) const;

  std::vector<prometheus::MetricFamily> Collect() const;

 private:
  // Running totals from which the energy and clock rate of a step are interpolated.
  struct Totals {
    RunningTotal joules;
    RunningTotal cycles;
    std::array<RunningTotal, kGpuSlowdowns> slow_seconds;
  };
  struct Gpu {
    int index = 0;  // NVML index.
    std::optional<int64_t> memory_bytes;
    std::optional<int> nvlinks_up;
    GpuReading last;
    absl::Time read_at = absl::InfinitePast();
    Totals totals;
    double cycles = 0;
    std::array<double, kGpuSlowdowns> slow_seconds = {};
    std::optional<int64_t> xids;
    std::optional<RankId> rank;              // Rank on this GPU.
    std::optional<v1::MemoryReport> memory;  // Latest report of that rank.
    std::optional<v1::StepPower> step;       // Power of its last step.
  };

  void Serve();
  bool IsEnding() const;
  bool Has(int device) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return device >= 0 && device < static_cast<int>(gpus_.size());
  }
  static void AddSamples(const Gpu& gpu, const LabeledSamples& add);
  static void Take(const GpuReading& reading, absl::Time now, Gpu* gpu);
  static std::optional<v1::StepPower> PowerOf(const Gpu& gpu, absl::Time begin, absl::Time end);

  const std::string node_;
  Clock* const clock_;
  std::unique_ptr<Nvml> nvml_;  // Used on the sampling thread only.
  mutable Mutex mutex_;
  CondVar changed_;
  absl::Time links_read_ = absl::InfinitePast();  // Used on the sampling thread only.
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Gpu> gpus_ ABSL_GUARDED_BY(mutex_);  // By CUDA device index.
};

}  // namespace fsdpd
