// Keeps the logs of ranks within a bound while they are written. A rank holds its file itself, so nothing can
// be put in the file's place: what is oldest in it is given back to the disk and leaves a hole, and all
// offsets stay what they were. Where the log begins from then on, a line where there is one, is said by a
// small file beside it before the hole is made, so whoever has read bytes that LogFront does not pass over
// has read what was written.
//
// A thread looks a few times a second, so that much more than the bound may be there for a moment. On a file
// system without holes logs grow, which is said once.
//
//   Watch when a rank begins to write, Unwatch when nobody can write any more
//
// Thread safety: all methods.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <string>
#include <thread>

#include "base/mutex.h"

namespace fsdpd {

// Of a rank's log of an attempt, where nobody says otherwise: a day of a rank that writes 3 KB a second.
constexpr int64_t kMaxLogBytes = int64_t{256} << 20;

struct LogFront {
  int64_t bytes = 0;  // Before the log's first line that is still there.
  int64_t lines = 0;
};

// Zero after somebody else truncated the log (logrotate, a plug-in): its writer starts again at offset 0,
// where no hole is.
LogFront FrontOf(const std::string& log);

class LogBound {
 public:
  explicit LogBound(int64_t max_bytes);
  ~LogBound();

  void Watch(const std::string& log);
  void Unwatch(const std::string& log);  // It is looked at once more.

  // "[fsdpd-agent: ...]", of what a reader misses. Lines: -1 where they were not counted.
  std::string Notice(int64_t bytes, int64_t lines) const;

 private:
  void Run();
  void Look(const std::string& log);

  const int64_t max_bytes_;
  // The thread's own.
  bool told_ = false;  // That something cannot be cut.
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, bool> watched_ ABSL_GUARDED_BY(mutex_);  // Whether it is written.
  std::thread thread_;                                           // Last: it uses all of the above.
};

}  // namespace fsdpd
