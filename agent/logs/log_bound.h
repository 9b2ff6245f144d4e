// Size limit for logs of ranks that are being written. The rank holds the descriptor of its log, so the file
// cannot be replaced (rotated). Instead, the oldest part is deallocated with a hole (FALLOC_FL_PUNCH_HOLE)
// and all offsets stay the same:
//
//   rank-0.log        |<--- hole: front.bytes --->|<--- at most max_bytes --->|
//   rank-0.log.front  "front.bytes front.lines"
//
// The .front file is written before the hole is punched, so bytes that were read at or after FrontOf() are
// what the rank wrote.
//
// The limit also applies to a log that is removed or replaced while its rank writes: the descriptor opened by
// Watch still reaches the unlinked file, and `removed` is called. On file systems without holes logs grow;
// this is logged once.
//
//   Watch when a rank begins to write, Unwatch when no process can write any more
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/unique_fd.h"

namespace fsdpd {

// Default limit for the log of a rank in one attempt: one day at 3 KB/s.
constexpr int64_t kMaxLogBytes = int64_t{256} << 20;

struct LogFront {
  int64_t bytes = 0;  // Offset of the first remaining line.
  // Number of dropped lines.
  int64_t lines = 0;
};

// Position of the first remaining line. Zero if the log was truncated by others (logrotate, a plug-in): its
// writer then starts at offset 0, before the hole.
LogFront FrontOf(const std::string& log);

class LogBound {
 public:
  // `removed` is called on the thread of this object with the path of a watched log: once if another file has
  // taken its place, and at every check while no file is there.
  explicit LogBound(int64_t max_bytes, std::function<void(const std::string&)> removed = nullptr);
  ~LogBound();

  void Watch(const std::string& log);
  void Unwatch(const std::string& log);  // The log is checked one last time.

  // The notice "[fsdpd-agent: ...]" about data that a reader missed. `lines`: -1 if they were not counted.
  std::string Notice(int64_t bytes, int64_t lines) const;

 private:
  struct Log {
    UniqueFd fd;           // Invalid until the file was opened.
    bool removed = false;  // The path is missing or leads to another file.
  };
  struct Watched {
    std::shared_ptr<Log> log;  // Used on the thread only, once it is watched.
    bool written = true;
  };

  void Run();
  void Poll(const std::string& path, const Watched& watched);
  void Bound(const std::string& path, const Log& log);

  const int64_t max_bytes_;
  const std::function<void(const std::string&)> removed_;
  // Used on the thread only: a failure was logged.
  bool failure_logged_ = false;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, Watched> watched_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace fsdpd
