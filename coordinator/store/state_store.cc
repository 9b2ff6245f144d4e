#include "coordinator/store/state_store.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <tuple>

#include "coordinator/job/directory_owner.h"
#include "coordinator/job/job_machine.h"

namespace fsdpd {

absl::Status FirstError(const std::vector<absl::Status>& results) {
  absl::Status first;
  for (const absl::Status& each : results) first.Update(each);
  return first;
}

absl::Status FencedError() {
  return absl::UnavailableError("state store: lost leadership; retry against the new leader");
}

absl::StatusOr<v1::Job> ParseJob(const std::string& bytes) {
  v1::Job job;
  if (!job.ParseFromString(bytes)) return absl::DataLossError("state store: a stored job cannot be read");
  NumberOldEvents(&job);
  return job;
}

JobCursor PlaceOf(const JobQuery& query, const v1::Job& job) {
  return {query.by_end ? EndOf(job) : job.create_unix_nanos(), job.id()};
}

bool IsBefore(const JobQuery& query, const JobCursor& a, const JobCursor& b) {
  const auto place = [](const JobCursor& cursor) { return std::tie(cursor.unix_nanos, cursor.id); };
  return query.ascending ? place(a) < place(b) : place(b) < place(a);
}

int64_t EndOf(const v1::Job& job) {
  return IsEnded(job.state()) ? std::max<int64_t>(1, job.end_unix_nanos()) : 0;
}

absl::Status DirectoryTaken(const v1::Job& job) {
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint.dir: ", DirectoryOf(job.spec()), " is used by another live job"));
}

absl::StatusOr<v1::Job> SameRequest(v1::Job stored, const v1::JobSpec& spec) {
  if (stored.spec().SerializeAsString() == spec.SerializeAsString()) return stored;
  return absl::AlreadyExistsError(absl::StrCat("request id '", stored.request_id(), "' was used for job ",
                                               stored.id(), " with another spec; use a new request id"));
}

int64_t GenerationByDate(absl::Time now) {
  return absl::ToInt64Seconds(now - absl::FromCivil(absl::CivilDay(2020, 1, 1), absl::UTCTimeZone()));
}

}  // namespace fsdpd
