// Keeps the logs of ranks within a bound while they are written. A rank holds its file itself, so nothing can
// be put in the file's place: what is oldest in it is given back to the disk and leaves a hole, and all
// offsets stay what they were. Where the log begins from then on, a line where there is one, is said by a
// small file beside it before the hole is made, so whoever has read bytes that LogFront does not pass over
// has read what was written.
//
// The bound also holds for a log that somebody removes or replaces while its rank writes: the descriptor that
// is opened by Watch reaches the file without a name, and `removed` is called.
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
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/unique_fd.h"

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
  // `removed` is called on the thread of this object, with the path of a watched log: once when another file
  // is there, and in each look while none is.
  explicit LogBound(int64_t max_bytes, std::function<void(const std::string&)> removed = nullptr);
  ~LogBound();

  void Watch(const std::string& log);
  void Unwatch(const std::string& log);  // It is looked at once more.

  // "[fsdpd-agent: ...]", of what a reader misses. Lines: -1 where they were not counted.
  std::string Notice(int64_t bytes, int64_t lines) const;

 private:
  struct Log {
    UniqueFd fd;           // Invalid until the file can be opened.
    bool removed = false;  // The path leads to another file, or to none.
  };
  struct Watched {
    std::shared_ptr<Log> log;  // The thread's own, once it is watched.
    bool written = true;
  };

  void Run();
  void Look(const std::string& path, const Watched& watched);
  void Bound(const std::string& path, const Log& log);

  const int64_t max_bytes_;
  const std::function<void(const std::string&)> removed_;
  // The thread's own.
  bool told_ = false;  // That something cannot be cut.
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, Watched> watched_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace fsdpd
