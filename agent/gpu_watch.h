// What the GPUs of this node's ranks do, by NVML: read ten times a second by a thread of its own, so that
// neither a rank nor the agent waits for a driver. It gives steps their energy and clock, and /metrics a
// card's series. Where NVML tells nothing there is no series, rather than a zero; nor is there one of a card
// whose driver hangs, which would tell what was for ever.
//
//   make_shared -> Start -> Stop;  Launched, Stepped, Ended and Collect at any time
//
// Series are a card's: `device` is as fsdpd_rank_info has it ("cuda:3"). What is asked of a job also has the
// job and rank that run there, both empty while nobody does. Not so what is counted of the card itself, which
// goes on whoever uses it.
// Thread safety: all methods.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>
#include <prometheus/metric_family.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/attempt.h"
#include "agent/running_total.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/nvml.h"
#include "proto/fsdpd/v1/preflight.pb.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

class GpuWatch : public std::enable_shared_from_this<GpuWatch> {
 public:
  static constexpr absl::Duration kPeriod = absl::Milliseconds(100);

  // For how long Stop() waits.
  static constexpr absl::Duration kLongestStop = absl::Seconds(1);

  // `clock` outlives it, and the thread that a driver keeps.
  GpuWatch(std::string node, Clock* clock) : node_(std::move(node)), clock_(clock) {}

  // The thread opens, and samples until Stop(); it logs why there is nothing to read. Once.
  void Start();
  // Waits for the thread, but not for a driver that hangs: what hangs there is left behind. Idempotent.
  void Stop();

  // What the thread does. Opens the GPUs that CUDA shows this process, which are those of its ranks. Errors:
  // Nvml::Open's and VisibleGpus'.
  absl::Status Open();
  // One reading of each. REQUIRES: Open() was OK.
  void Sample();

  // The rank has CUDA device `device` from now on.
  void Launched(int device, const RankId& id);
  // Of CUDA device `device` while a step ran, which its rank reports now: into the report. Nothing where it
  // is not known.
  void Stepped(int device, v1::StepReport* report);
  // What is known of the device itself, and what it did from `begin` to `end`, which are dates. Nothing where
  // that is not known.
  void Describe(int device, v1::PreflightDevice* described) const;
  void Ran(int device, absl::Time begin, absl::Time end, v1::PreflightDevice* described) const;
  // The rank of the device has ended; unless another is there already.
  void Ended(int device, const RankId& id);
  // Memory in use by all processes there, as read after `since` (of the clock's Now()). Empty: it was not.
  std::optional<int64_t> UsedBytes(int device, absl::Time since) const;

  std::vector<prometheus::MetricFamily> Collect() const;

 private:
  // What a card's steps are told from. Clock: cycles.
  struct Totals {
    RunningTotal joules;
    RunningTotal cycles;
    std::array<RunningTotal, kGpuSlowdowns> slow_seconds;
  };
  struct Gpu {
    int index = 0;  // NVML's.
    std::optional<int64_t> memory_bytes;
    std::optional<int> nvlinks_up;
    GpuReading last;
    absl::Time read_at = absl::InfinitePast();
    Totals totals;
    double cycles = 0;
    std::array<double, kGpuSlowdowns> slow_seconds = {};
    std::optional<int64_t> xids;
    std::optional<RankId> rank;              // That runs there.
    std::optional<v1::MemoryReport> memory;  // Of that rank.
    std::optional<v1::StepPower> step;       // The last one that was told.
  };

  void Serve();
  bool IsEnding() const;
  static void Take(const GpuReading& reading, absl::Time now, Gpu* gpu);
  static std::optional<v1::StepPower> PowerOf(const Gpu& gpu, absl::Time begin, absl::Time end);

  const std::string node_;
  Clock* const clock_;
  std::unique_ptr<Nvml> nvml_;  // The sampling thread's.
  mutable Mutex mutex_;
  CondVar changed_;
  absl::Time links_read_ = absl::InfinitePast();  // The sampling thread's.
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Gpu> gpus_ ABSL_GUARDED_BY(mutex_);  // By CUDA device.

  friend class GpuTable;
};

}  // namespace fsdpd
