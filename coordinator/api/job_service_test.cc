// Tests of concurrent SubmitJob calls.
#include "coordinator/api/job_service.h"

#include <utility>

#include "base/ids.h"
#include "coordinator/testing/reconciler_case.h"
#include "coordinator/testing/tiny_spec.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

class JobServiceTest : public ReconcilerCase {
 protected:
  static v1::SubmitJobRequest Saving(const std::string& request_id) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = TinySpec();
    request.mutable_spec()->mutable_checkpoint()->set_dir("/runs/7");
    request.mutable_spec()->mutable_checkpoint()->set_every_steps(5);
    request.set_request_id(request_id);
    return request;
  }
  // Runs `other` to completion while `request` is in admission.
  absl::Status SubmitWhile(const v1::SubmitJobRequest& request, const v1::SubmitJobRequest& other,
                           v1::Job* job) {
    bool met = false;
    const Admission admission([&] {
      if (!std::exchange(met, true)) {
        v1::Job first;
        first.set_id("first");
        first.set_state(v1::JOB_STATE_QUEUED);
        *first.mutable_spec() = other.spec();
        first.set_request_id(other.request_id());
        EXPECT_TRUE(store_->Insert(first).ok());
      }
      return std::vector<NodeSlots>();
    });
    JobService service({&admission, store_.get(), board_.get(), reconciler_.get(), nodes_.get(), &clock_,
                        /*meters=*/nullptr, NewJobId});
    v1::SubmitJobResponse response;
    const absl::Status status = service.SubmitJob({}, request, &response);
    EXPECT_TRUE(met);
    *job = response.job();
    return status;
  }
};

TEST_F(JobServiceTest, RequestDoesNotConflictWithTheDirectoryOfItsOwnJob) {
  v1::Job job;
  const absl::Status status = SubmitWhile(Saving("r"), Saving("r"), &job);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(job.id(), "first");
}

TEST_F(JobServiceTest, RejectsDirectoryTakenDuringAdmission) {
  v1::Job job;
  for (const char* request_id : {"", "s"}) {
    const absl::Status status = SubmitWhile(Saving(request_id), Saving("r"), &job);
    EXPECT_THAT(status.message(), HasSubstr("/runs/7 belongs to job first"));
    ASSERT_TRUE(store_->Delete("first").ok());
  }
}

}  // namespace
}  // namespace fsdpd
