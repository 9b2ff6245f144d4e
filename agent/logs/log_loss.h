// Detection of lost log output. The agent does not see writes of ranks fail on a full disk. While any rank
// writes, a thread writes one page to the disk every second: from the first failure to the next success,
// output of ranks counts as lost. After the end a notice is appended to each log that has a gap. Time also
// counts while a rank writes to a log that was removed or replaced; a new file at its path has a notice.
//
//   Watch when a rank begins to write, Unwatch when no process can write any more
//
// Thread-safe. `lost` is called on the thread of this object, once a second during a loss.
#pragma once

#include <absl/time/time.h>

#include <functional>
#include <set>
#include <string>
#include <thread>

#include "base/mutex.h"

namespace fsdpd {

class LogLoss {
 public:
  LogLoss(std::string work_dir, std::function<void(absl::Duration)> lost);
  ~LogLoss();

  void Watch(const std::string& log);
  void Unwatch(const std::string& log);

  // The path of a watched log is missing or leads to another file than the one its rank writes to.
  void Removed(const std::string& log);

  // Notice for readers that output is being lost, with the reason; "" if it is not.
  std::string Notice() const;

 private:
  bool AwaitNextPoll();
  void Poll();

  const std::string work_dir_;
  const std::function<void(absl::Duration)> lost_;
  // Used on the thread only.
  absl::Time last_poll_ = absl::InfinitePast();
  absl::Time since_ = absl::InfiniteFuture();  // Start of the current loss.

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string why_ ABSL_GUARDED_BY(mutex_);                // Reason of the current loss.
  std::set<std::string> watched_ ABSL_GUARDED_BY(mutex_);  // Logs that ranks write to.
  std::set<std::string> gaps_ ABSL_GUARDED_BY(mutex_);     // Logs that were watched during the current loss.
  std::set<std::string> removed_ ABSL_GUARDED_BY(mutex_);  // Subset of watched_.
  std::thread thread_;                                     // Last: it uses all of the above.
};

}  // namespace fsdpd
