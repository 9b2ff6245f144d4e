// Durable storage of jobs, nodes, cordons and events. An implementation owns durability and uniqueness: it
// does not interpret job states, except which have ended.
//
// Contract for every implementation:
//   * A change is on stable storage when the call returns OK.
//   * A request id names at most one job while that job is stored; check and insert are atomic.
//   * A checkpoint directory (directory_owner.h) has at most one job that has not ended, except jobs that an
//     earlier release stored; check and change are atomic.
//   * Events are stored atomically with their change. Events of a job are in the job (Job.events,
//     event_log.h); other events are passed as `news`.
//   * generation() is larger than in every earlier run that stored anything: it fences the streams of agents.
//     Thread-safe. Errors: RESOURCE_EXHAUSTED if the disk is full, DATA_LOSS if stored data cannot be read,
//     UNAVAILABLE for an I/O error, NOT_FOUND, ALREADY_EXISTS, OUT_OF_RANGE for a job that is too large. A
//     call that failed stored nothing, except calls for many objects, which may have stored some of them.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/schedule/job_labels.h"
#include "coordinator/store/event_log.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// Position in the order of a query's jobs.
struct JobCursor {
  int64_t unix_nanos = 0;  // When the job was created, or ended.
  std::string id;
};

struct JobQuery {
  int limit = 50;
  // A page ends early, after the job with which it exceeds this size.
  size_t max_bytes = SIZE_MAX;
  std::vector<v1::JobState> states;  // Empty: all.
  std::string directory;             // As returned by DirectoryOf(); empty: all.
  std::string project;               // Empty: all.
  std::string id_prefix;             // Empty: all.
  Selector selector;                 // Empty: all.
  bool by_end = false;               // Order by end, EndOf(); default: by creation.
  bool ascending = false;            // Oldest first.
  bool after_cursor = false;         // false: from the first job.
  JobCursor cursor;
};

struct JobPage {
  std::vector<v1::Job> jobs;
  bool more = false;
  // If `more`: position of the last job, in the order at that time.
  JobCursor end;
};

// Retention of ended jobs: the `jobs` that ended last, and of those only jobs that ended in the last `time`.
struct Retention {
  int64_t jobs = 10'000;
  absl::Duration time = absl::InfiniteDuration();
};

struct Inserted {
  v1::Job job;           // With its events from the log.
  bool created = false;  // false: `job` was created by an earlier call with the same request.
};

class StateStore {
 public:
  virtual ~StateStore() = default;

  virtual int64_t generation() const = 0;
  // The log of stored events, up to kMaxEvents.
  virtual const EventLog& events() const = 0;

  // The job of a request, nullopt if absent. ALREADY_EXISTS if its spec was different.
  virtual absl::StatusOr<std::optional<v1::Job>> FindRequest(const std::string& request_id,
                                                             const v1::JobSpec& spec) = 0;
  // Returns the stored job if it has the same request id and a byte-identical spec; ALREADY_EXISTS if the
  // specs differ. An empty request id never matches. ALREADY_EXISTS also for an id in use.
  // FAILED_PRECONDITION if a job that has not ended uses the directory.
  virtual absl::StatusOr<Inserted> Insert(const v1::Job& job) = 0;
  // FAILED_PRECONDITION if the job had ended, is live again, and another live job uses its directory.
  virtual absl::Status Update(const v1::Job& job) = 0;
  // In few transactions, so that the cost is not one fsync per job. Returns one status per job, in order: a
  // job that is refused (too large, or NOT_FOUND) does not prevent others from being stored.
  virtual std::vector<absl::Status> UpdateAll(const std::vector<const v1::Job*>& jobs) = 0;
  // `news`: events of this change, here and below.
  virtual absl::Status Delete(const std::string& id, const Events& news = {}) = 0;
  // Deletes ended jobs outside `retention`, oldest end first, at most `limit`; fewer after an error. Returns
  // their ids.
  virtual absl::StatusOr<std::vector<std::string>> ForgetEnded(const Retention& retention, absl::Time now,
                                                               int limit) = 0;
  virtual absl::StatusOr<v1::Job> Get(const std::string& id) = 0;
  virtual absl::StatusOr<JobPage> List(const JobQuery& query) = 0;
  // All jobs that have not ended, oldest first.
  virtual absl::StatusOr<std::vector<v1::Job>> LiveJobs() = 0;

  // By node. Setting replaces an existing cordon; removing a missing one is a no-op.
  virtual absl::Status SetCordon(const std::string& node, const v1::Cordon& cordon,
                                 const Events& news = {}) = 0;
  virtual absl::Status RemoveCordon(const std::string& node, const Events& news = {}) = 0;
  virtual absl::StatusOr<std::map<std::string, v1::Cordon>> Cordons() = 0;

  // Stores the nodes of `changed`, deletes those of `gone`, and leaves others as they are.
  virtual absl::Status UpdateNodes(const v1::ListNodesResponse& changed, const std::vector<std::string>& gone,
                                   const Events& news = {}) = 0;
  virtual absl::StatusOr<v1::ListNodesResponse> Nodes() = 0;
};

absl::Status FirstError(const std::vector<absl::Status>& results);

// UNAVAILABLE: this coordinator lost leadership, and the write was refused.
absl::Status FencedError();

// Shared by implementations.

// DATA_LOSS if it cannot be parsed. Does not add the log's events.
absl::StatusOr<v1::Job> ParseJob(const std::string& bytes);
// The job's position in the query's order, and whether one position precedes another.
JobCursor PlaceOf(const JobQuery& query, const v1::Job& job);
bool IsBefore(const JobQuery& query, const JobCursor& a, const JobCursor& b);
// The stored end time in Unix nanoseconds: 0 while it has not ended, 1 if it ended without a known time.
int64_t EndOf(const v1::Job& job);
absl::Status DirectoryTaken(const v1::Job& job);
// `stored` if its spec is the same, otherwise ALREADY_EXISTS.
absl::StatusOr<v1::Job> SameRequest(v1::Job stored, const v1::JobSpec& spec);
// Seconds since 2020, which grow faster than coordinators can be restarted: a state that is restored from an
// old backup continues above the generations of all earlier runs.
int64_t GenerationByDate(absl::Time now);

}  // namespace fsdpd
