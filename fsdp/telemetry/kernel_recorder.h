// Recorder of GPU kernels and copies of this process, using CUPTI. Records only on request, since it costs
// about a microsecond per launch. CUPTI is loaded at run time: LibTorch for CUDA includes it, and tracing
// works without it.
//
// CUPTI is process-wide, so this class is a singleton. Timestamps are on the host's clock.
//
// Start -> Take, repeatedly -> Stop. Thread-safe.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace fsdpd {

struct DeviceActivity {
  enum class Kind { kKernel, kCopy, kFill };
  Kind kind = Kind::kKernel;
  std::string name;  // Kernel name as in the source, shortened; for others the operation.
  uint32_t stream = 0;
  int64_t begin_unix_nanos = 0;
  int64_t end_unix_nanos = 0;
  int64_t bytes = 0;  // Size of copies and fills.
};

class KernelRecorder {
 public:
  // Per device: a few steps of a large model. The oldest are dropped first, so that records that were never
  // taken, as after the last traced step, do not accumulate. Dropped records of a step are logged once.
  static constexpr size_t kMostRecords = 500'000;

  static KernelRecorder& Process();

  // Reference-counted. UNAVAILABLE if CUPTI is missing or fails; the message says which.
  absl::Status Start();
  void Stop();

  // Activities that started on a device in this interval, in order. CUPTI delivers activities with delay:
  // waits until it has delivered a later one, at most for `longest`. Older records are dropped.
  std::vector<DeviceActivity> Take(int device, int64_t begin_unix_nanos, int64_t end_unix_nanos,
                                   absl::Duration longest);

 private:
  // As delivered by CUPTI; names are interned.
  struct Record {
    DeviceActivity::Kind kind;
    const std::string* name;
    uint32_t stream;
    int64_t begin_unix_nanos;
    int64_t end_unix_nanos;
    int64_t bytes;
  };
  struct Records {
    std::deque<Record> kept;
    int64_t forgotten_until_unix_nanos = 0;  // Latest start of a record that was dropped for capacity.
  };
  struct Cupti;
  friend struct Cupti;

  KernelRecorder() = default;
  absl::Status Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(cupti_mutex_);
  void Add(int device, const std::string& name, Record record);

  Mutex cupti_mutex_;                                     // Held across CUPTI calls that do not call back.
  Cupti* cupti_ ABSL_GUARDED_BY(cupti_mutex_) = nullptr;  // Never freed.
  int users_ ABSL_GUARDED_BY(cupti_mutex_) = 0;

  Mutex mutex_;
  CondVar changed_;
  std::set<std::string> names_ ABSL_GUARDED_BY(mutex_);
  std::map<int, Records> records_ ABSL_GUARDED_BY(mutex_);  // By device.
  bool lost_reported_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace fsdpd
