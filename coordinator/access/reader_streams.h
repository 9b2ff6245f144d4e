// Limits of reader streams of the public API, each of which holds a thread: in total and per principal, so
// that one client cannot use up all. Log readers have a lower limit, because each holds files open on every
// node that it reads from (base/api/log_readers.h). kStreamPoll is how often a stream checks its client and
// the coordinator's stop, because the synchronous API cannot wake a handler.
//
// Thread-safe.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>

#include <map>
#include <string>

#include "base/mutex.h"

namespace fsdpd {

constexpr int kMaxReaderStreams = 512;
constexpr int kMaxStreamsPerPrincipal = 128;
constexpr int kMaxLogReadersPerPrincipal = 64;  // Subset of the above; a quarter of what a node serves.
constexpr absl::Duration kStreamPoll = absl::Milliseconds(200);

enum class ReaderKind {
  kWatch,  // Watches of a job or of events.
  kLogs,   // Readers of logs, traces or steps, which agents send.
};

class ReaderStreams {
 public:
  // RAII reservation of one stream. It does not count unless status() is OK.
  class Place {
   public:
    // `principal` is empty without tokens, when only the total is limited. `streams` must outlive this
    // object.
    Place(ReaderStreams* streams, const std::string& principal, ReaderKind kind)
        : streams_(streams), principal_(principal), kind_(kind), status_(streams->Take(principal, kind)) {}
    ~Place() {
      if (status_.ok()) streams_->Release(principal_, kind_);
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    const absl::Status& status() const { return status_; }  // RESOURCE_EXHAUSTED at a bound.

   private:
    ReaderStreams* const streams_;
    const std::string principal_;
    const ReaderKind kind_;
    const absl::Status status_;
  };

 private:
  struct Share {
    int streams = 0;
    int log_readers = 0;  // Included in streams.
  };
  absl::Status Take(const std::string& principal, ReaderKind kind);
  void Release(const std::string& principal, ReaderKind kind);

  Mutex mutex_;
  int streams_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Share> by_principal_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
