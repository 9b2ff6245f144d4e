// Where jobs, cordons of nodes, and what has happened to both live across restarts. An implementation owns
// durability and uniqueness, nothing else: it does not know what a job's states mean, except which have
// ended.
//
// Contract for every implementation:
//   * What changes something is on stable storage when it returns OK.
//   * A request id names at most one job, for as long as that is stored; check and insert are one step.
//   * A checkpoint directory (job_directory.h) has at most one job that has not ended, but for those that an
//     earlier release stored; check and change are one step.
//   * Events are stored with the change that they tell of, or not at all: those of a job that it is given are
//     in it (Job.events, event_log.h), those of others beside it.
//   * generation() is larger than in every earlier life that stored anything: it fences agents' streams.
// Thread-safe. Errors: RESOURCE_EXHAUSTED when the disk is full, DATA_LOSS when what is stored cannot be
// read, UNAVAILABLE for an I/O error, NOT_FOUND, ALREADY_EXISTS, OUT_OF_RANGE for a job that is too large.
// After an error nothing of the call was stored, but for what is about many: of that a part may be.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/job_labels.h"
#include "coordinator/store/event_log.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// Position in the order of a query's jobs.
struct JobCursor {
  int64_t unix_nanos = 0;  // When it came, or ended.
  std::string id;
};

// A page of what is filtered ends early after so many jobs that were looked at: a client that goes on asks
// again, and nobody waits for a reading of all. Those that the query's other fields leave out, its selector
// among them, are not looked at.
constexpr size_t kMaxJobsLookedAt = 5000;

struct JobQuery {
  int limit = 50;
  // A page ends early, after the job with which it has more bytes than this.
  size_t max_bytes = SIZE_MAX;
  std::vector<v1::JobState> states;  // Empty: all.
  std::string directory;             // As DirectoryOf() has it; empty: all.
  std::string project;               // Empty: all.
  Selector selector;                 // Empty: all.
  // Null: all. Asked of each that is read.
  std::function<bool(const v1::Job&)> filter = nullptr;
  bool by_end = false;        // In the order of their ends, EndOf(); default: in which they came.
  bool ascending = false;     // The oldest first.
  bool after_cursor = false;  // False: from the first job.
  JobCursor cursor;
  size_t most_looked_at = kMaxJobsLookedAt;
};

struct JobPage {
  std::vector<v1::Job> jobs;
  bool more = false;
  // Where there are more: of the last job that was looked at, where the order had it, wherever it is by now.
  JobCursor end;
};

// Which ended jobs are kept: the `jobs` that ended last, and those of them that ended in the last `time`.
struct Retention {
  int64_t jobs = 10'000;
  absl::Duration time = absl::InfiniteDuration();
};

struct Inserted {
  v1::Job job;           // With its events as the log has them.
  bool created = false;  // False: `job` is the one that the same request made before.
};

class StateStore {
 public:
  virtual ~StateStore() = default;

  virtual int64_t generation() const = 0;
  // All that are stored, up to kMaxEvents. Who reads them changes nothing.
  virtual const EventLog& events() const = 0;

  // The job that a request made, empty when there is none. ALREADY_EXISTS when its spec was another one.
  virtual absl::StatusOr<std::optional<v1::Job>> FindRequest(const std::string& request_id,
                                                             const v1::JobSpec& spec) = 0;
  // A job with the request id of a stored one is that job when their specs are the same bytes, ALREADY_EXISTS
  // otherwise. An empty request id never matches. ALREADY_EXISTS also for an id in use. FAILED_PRECONDITION
  // where a job that has not ended has its directory.
  virtual absl::StatusOr<Inserted> Insert(const v1::Job& job) = 0;
  // FAILED_PRECONDITION where it had ended, has not any more, and another has its directory.
  virtual absl::Status Update(const v1::Job& job) = 0;
  // Of jobs that are stored, together: few transactions, so that its cost does not grow by an fsync a job. A
  // status for each, in their order: one that is refused (too large, or NOT_FOUND) keeps no other from being
  // stored.
  virtual std::vector<absl::Status> UpdateAll(const std::vector<const v1::Job*>& jobs) = 0;
  // `news`: what tells of it, here and below.
  virtual absl::Status Delete(const std::string& id, const Events& news = {}) = 0;
  // Deletes ended jobs that are not to be kept, the first `limit` by their ends; the ids of those that are
  // gone, which may be fewer. `now`: the date.
  virtual absl::StatusOr<std::vector<std::string>> ForgetEnded(const Retention& retention, absl::Time now,
                                                               int limit) = 0;
  virtual absl::StatusOr<v1::Job> Get(const std::string& id) = 0;
  virtual absl::StatusOr<JobPage> List(const JobQuery& query) = 0;
  // All that have not ended, oldest first.
  virtual absl::StatusOr<std::vector<v1::Job>> LiveJobs() = 0;

  // By node. One replaces another; to remove one that is not there changes nothing.
  virtual absl::Status SetCordon(const std::string& node, const v1::Cordon& cordon,
                                 const Events& news = {}) = 0;
  virtual absl::Status RemoveCordon(const std::string& node, const Events& news = {}) = 0;
  virtual absl::StatusOr<std::map<std::string, v1::Cordon>> Cordons() = 0;

  // Of the nodes that are known: those of `changed` are stored, those of `gone` are no more, others stay as
  // they are.
  virtual absl::Status UpdateNodes(const v1::ListNodesResponse& changed, const std::vector<std::string>& gone,
                                   const Events& news = {}) = 0;
  virtual absl::StatusOr<v1::ListNodesResponse> Nodes() = 0;
};

// OK where all are.
absl::Status FirstError(const std::vector<absl::Status>& results);

// What implementations share.

// DATA_LOSS. Without the events that the log has.
absl::StatusOr<v1::Job> ParseJob(const std::string& bytes);
// Where it stands in the query's order, and whether one place is before another.
JobCursor PlaceOf(const JobQuery& query, const v1::Job& job);
bool IsBefore(const JobQuery& query, const JobCursor& a, const JobCursor& b);
// When it ended, as it is stored: 0 while it has not, and what says nothing of it has ended long ago.
int64_t EndOf(const v1::Job& job);
absl::Status DirectoryTaken(const v1::Job& job);
// `stored` where its spec is the same; ALREADY_EXISTS.
absl::StatusOr<v1::Job> SameRequest(v1::Job stored, const v1::JobSpec& spec);
// Seconds since 2020: grows faster than coordinators can be started one after the other, so that a state that
// was put back from the past goes on above all lives since, also where it is put back again.
int64_t GenerationByDate(absl::Time now);

}  // namespace fsdpd
