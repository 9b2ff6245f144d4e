// Fuzzer of jsonpath: an accepted path renders a list of jobs, or returns an error with a message.
#include <absl/strings/string_view.h>

#include "base/check.h"
#include "client/text/json_path.h"
#include "proto/fsdpd/v1/coordinator.pb.h"
#include "tests/fuzzers/cases.h"

namespace {

fsdpd::v1::ListJobsResponse SomeJobs() {
  fsdpd::v1::ListJobsResponse jobs;
  for (const char* id : {"a-1", "b-2", "c-3"}) {
    fsdpd::v1::Job* job = jobs.add_jobs();
    job->set_id(id);
    job->set_attempt(jobs.jobs_size());
    job->add_warnings("one");
    job->mutable_last_step()->set_loss(0.25);
  }
  return jobs;
}

void Check(const absl::StatusOr<fsdpd::JsonPath>& path) {
  static const fsdpd::v1::ListJobsResponse jobs = SomeJobs();
  const absl::Status done = path.ok() ? path->Render(jobs).status() : path.status();
  FSDPD_CHECK(done.ok() || (absl::IsInvalidArgument(done) && !done.message().empty()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  Check(fsdpd::JsonPath::Parse(text));
  Check(fsdpd::JsonPath::ParsePath(text));
  return 0;
}
