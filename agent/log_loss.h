// Notices that rank logs are being lost. Ranks write to their files themselves, so nobody sees their writes
// fail on a full disk. While ranks write, a thread tries the disk once a second with a page of its own; from
// the first failure to the next success what ranks write counts as lost. It says so in the agent's log when
// that begins and ends, counts the time, and when there is room again puts a line into each log that has a
// gap. The time counts too while a rank writes to a log that somebody removed or replaced: a new file at its
// path says so to readers.
//
//   Watch when a rank begins to write, Unwatch when nobody can write any more
//
// Thread safety: all methods. `lost` is called on the thread of this object, once a second while it lasts.
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

  // The path of a watched log leads to another file than its rank writes to, or to none.
  void Removed(const std::string& log);

  // Why what ranks write now is lost, as a line for readers; "" when it is not.
  std::string Notice() const;

 private:
  void Run();
  bool AwaitNextLook();
  void Look();

  const std::string work_dir_;
  const std::function<void(absl::Duration)> lost_;
  // The thread's own.
  absl::Time last_look_ = absl::InfinitePast();
  absl::Time since_ = absl::InfiniteFuture();  // When the present loss was noticed.

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string why_ ABSL_GUARDED_BY(mutex_);                // Of the present loss.
  std::set<std::string> watched_ ABSL_GUARDED_BY(mutex_);  // Logs that ranks write to.
  std::set<std::string> gaps_ ABSL_GUARDED_BY(mutex_);     // Logs that were watched during the present loss.
  std::set<std::string> removed_ ABSL_GUARDED_BY(mutex_);  // Of watched_.
  std::thread thread_;                                     // Last: it uses all of the above.
};

}  // namespace fsdpd
