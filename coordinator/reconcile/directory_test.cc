// Tests of two jobs with one checkpoint directory, with the whole coordinator in one process.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "coordinator/testing/served_case.h"
#include "coordinator/testing/tiny_spec.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

class DirectoryTest : public ServedCase {
 protected:
  static v1::JobSpec Saving(const std::string& directory) {
    v1::JobSpec spec = TinySpec();
    spec.mutable_checkpoint()->set_dir(directory);
    spec.mutable_checkpoint()->set_every_steps(5);
    return spec;
  }
  grpc::Status Submit(const v1::JobSpec& spec, std::string* id) {
    grpc::ClientContext context;
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    v1::SubmitJobResponse response;
    const grpc::Status status = stub_->SubmitJob(&context, request, &response);
    *id = response.job().id();
    return status;
  }
  std::vector<v1::Violation> Validate(const v1::JobSpec& spec) {
    grpc::ClientContext context;
    v1::ValidateJobRequest request;
    *request.mutable_spec() = spec;
    v1::ValidateJobResponse response;
    EXPECT_TRUE(stub_->ValidateJob(&context, request, &response).ok());
    return {response.violations().begin(), response.violations().end()};
  }
  void CancelOrDie(const std::string& id) {
    grpc::ClientContext context;
    v1::CancelJobRequest request;
    request.set_id(id);
    v1::CancelJobResponse response;
    ASSERT_TRUE(stub_->CancelJob(&context, request, &response).ok());
    ASSERT_EQ(response.job().state(), v1::JOB_STATE_CANCELLED);
  }
  void PauseOrDie(const std::string& id) {
    grpc::ClientContext context;
    v1::PauseJobRequest request;
    request.set_id(id);
    v1::PauseJobResponse response;
    ASSERT_TRUE(stub_->PauseJob(&context, request, &response).ok());
    ASSERT_EQ(response.job().state(), v1::JOB_STATE_PAUSED);
  }
};

TEST_F(DirectoryTest, PausedJobOwnsItsDirectoryUntilItEnds) {
  std::string first, second;
  ASSERT_TRUE(Submit(Saving("/runs/7"), &first).ok());
  PauseOrDie(first);
  const grpc::Status refused = Submit(Saving("/runs/./7/"), &second);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(),
              HasSubstr("checkpoint.dir: /runs/7 belongs to job " + first + ", which is paused"));
  const std::vector<v1::Violation> violations = Validate(Saving("/runs/7"));
  ASSERT_EQ(violations.size(), 1U);
  EXPECT_EQ(violations[0].rule(), "checkpoint_dir_taken");
  EXPECT_EQ(violations[0].field(), "checkpoint.dir");
  EXPECT_THAT(violations[0].fix(), HasSubstr("fsdpctl cancel " + first));
  EXPECT_TRUE(Submit(Saving("/runs/8"), &second).ok());
  CancelOrDie(first);
  EXPECT_TRUE(Validate(Saving("/runs/7")).empty());
  EXPECT_TRUE(Submit(Saving("/runs/7"), &second).ok());
}

TEST_F(DirectoryTest, JobsWithoutCheckpointsDoNotConflict) {
  std::string id;
  ASSERT_TRUE(Submit(TinySpec(), &id).ok());
  EXPECT_TRUE(Submit(TinySpec(), &id).ok());
}

}  // namespace
}  // namespace fsdpd
