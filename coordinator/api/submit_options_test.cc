// Options of a submit other than the spec, tested with a whole coordinator in one process.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "coordinator/testing/served_case.h"
#include "coordinator/testing/tiny_spec.h"

namespace fsdpd {
namespace {

using grpc::StatusCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SubmitOptionsTest : public ServedCase {
 protected:
  static v1::SubmitJobRequest Request(const std::vector<std::string>& after = {}) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = TinySpec();
    request.mutable_after()->Assign(after.begin(), after.end());
    return request;
  }
  grpc::Status Submit(const v1::SubmitJobRequest& request, v1::Job* job) {
    grpc::ClientContext context;
    v1::SubmitJobResponse response;
    const grpc::Status status = stub_->SubmitJob(&context, request, &response);
    *job = response.job();
    return status;
  }
  v1::Job SubmitOrDie(const v1::SubmitJobRequest& request) {
    v1::Job job;
    const grpc::Status status = Submit(request, &job);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return job;
  }
  grpc::Status Refused(const v1::SubmitJobRequest& request) {
    v1::Job job;
    return Submit(request, &job);
  }
  std::vector<std::string> ListOf(const std::string& project, bool all) {
    grpc::ClientContext context;
    v1::ListJobsRequest request;
    request.set_project(project);
    request.set_all_projects(all);
    v1::ListJobsResponse response;
    if (!stub_->ListJobs(&context, request, &response).ok()) return {"refused"};
    std::vector<std::string> ids;
    for (const v1::Job& job : response.jobs()) ids.push_back(job.id());
    return ids;
  }
};

TEST_F(SubmitOptionsTest, AcceptsOnlyDependenciesThatMaySucceed) {
  const v1::Job first = SubmitOrDie(Request());
  const v1::Job second = SubmitOrDie(Request({first.id()}));
  ASSERT_EQ(second.after_size(), 1);
  EXPECT_EQ(second.after(0).job(), first.id());
  EXPECT_FALSE(second.after(0).succeeded());
  EXPECT_EQ(Refused(Request({"none-1"})).error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(Refused(Request({""})).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Refused(Request(std::vector<std::string>(65, first.id()))).error_code(),
            StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext context;
  v1::CancelJobRequest cancel;
  cancel.set_id(first.id());
  v1::CancelJobResponse cancelled;
  ASSERT_TRUE(stub_->CancelJob(&context, cancel, &cancelled).ok());
  const grpc::Status late = Refused(Request({first.id()}));
  EXPECT_EQ(late.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(late.error_message(), HasSubstr("has been cancelled, so this job would never start"));
}

TEST_F(SubmitOptionsTest, RepeatedRequestMustMatch) {
  const v1::Job first = SubmitOrDie(Request());
  v1::SubmitJobRequest request = Request({first.id()});
  request.set_request_id("r-1");
  const v1::Job job = SubmitOrDie(request);
  EXPECT_EQ(SubmitOrDie(request).id(), job.id());
  request.clear_after();
  const grpc::Status other = Refused(request);
  EXPECT_EQ(other.error_code(), StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(other.error_message(), HasSubstr("was used for job " + job.id() + " with other options"));
  request.add_after(first.id());
  request.set_preemptible(true);
  EXPECT_EQ(Refused(request).error_code(), StatusCode::ALREADY_EXISTS);
}

TEST_F(SubmitOptionsTest, PreemptibleJobMustSave) {
  v1::SubmitJobRequest request = Request();
  request.set_preemptible(true);
  const grpc::Status refused = Refused(request);
  EXPECT_EQ(refused.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("requires checkpoint.dir"));
  request.mutable_spec()->mutable_checkpoint()->set_dir("/runs/7");
  EXPECT_TRUE(SubmitOrDie(request).preemptible());
}

TEST_F(SubmitOptionsTest, ListsJobsByProject) {
  v1::SubmitJobRequest request = Request();
  const std::string plain = SubmitOrDie(request).id();
  request.set_project("vision");
  const v1::Job ours = SubmitOrDie(request);
  EXPECT_EQ(ours.project(), "vision");
  request.set_project("No/Name");
  EXPECT_EQ(Refused(request).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(ListOf("vision", false), ElementsAre(ours.id()));
  EXPECT_THAT(ListOf("", false), ElementsAre(ours.id(), plain)) << "without authentication";
  EXPECT_THAT(ListOf("nlp", false), ElementsAre());
  EXPECT_THAT(ListOf("nlp", true), ElementsAre("refused"));
}

}  // namespace
}  // namespace fsdpd
