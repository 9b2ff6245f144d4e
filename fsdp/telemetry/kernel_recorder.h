// Kernels and copies of this process's GPUs, as CUPTI tells of them: only while somebody records, as it costs
// each launch about a microsecond. CUPTI is found at run time: LibTorch for CUDA brings it, and a program
// without it traces all the same.
//
// CUPTI is one for a process, so this is too. Times are the host's clock, as CUPTI has them.
//
// Start -> Take, as often as wanted -> Stop. Thread-safe.
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
  std::string name;  // Of a kernel as its source has it, the first of it; of others what they do.
  uint32_t stream = 0;
  int64_t begin_unix_nanos = 0;
  int64_t end_unix_nanos = 0;
  int64_t bytes = 0;  // Of a copy or fill.
};

class KernelRecorder {
 public:
  // Of a device: some steps of a large model. The oldest go first, so that what nobody took, as after the
  // last traced step, is in nobody's way; that a step lost some is said once in the log.
  static constexpr size_t kMostRecords = 500'000;

  static KernelRecorder& Process();

  // Recorders are counted. UNAVAILABLE: there is no CUPTI, or it refuses; the message says which.
  absl::Status Start();
  void Stop();

  // What began on a device within these times, in order. CUPTI hands over what is done bit by bit: waits
  // until it has told of something later, at most for `longest`. What is older is forgotten.
  std::vector<DeviceActivity> Take(int device, int64_t begin_unix_nanos, int64_t end_unix_nanos,
                                   absl::Duration longest);

 private:
  // As CUPTI tells it; the name is kept once.
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
    int64_t forgotten_until_unix_nanos = 0;  // When the latest began of those that there was no room for.
  };
  struct Cupti;
  friend struct Cupti;

  KernelRecorder() = default;
  absl::Status Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(cupti_mutex_);
  void Add(int device, const std::string& name, Record record);

  Mutex cupti_mutex_;  // Held across calls of CUPTI's that call nobody back.
  Cupti* cupti_ ABSL_GUARDED_BY(cupti_mutex_) = nullptr;  // Never freed.
  int users_ ABSL_GUARDED_BY(cupti_mutex_) = 0;

  Mutex mutex_;
  CondVar changed_;
  std::set<std::string> names_ ABSL_GUARDED_BY(mutex_);
  std::map<int, Records> records_ ABSL_GUARDED_BY(mutex_);  // By device.
  bool told_of_lost_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace fsdpd
