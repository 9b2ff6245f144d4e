// Test fixture of fsdpctl with a coordinator that has three jobs: tiny-b2 and big-c3 run, tiny-a1 is queued.
// The contexts file of the user is in a temporary directory.
#pragma once

#include <cstdlib>
#include <fstream>
#include <string>

#include "client/testing/command_case.h"

namespace fsdpd {

class ListedJobsCase : public ServedCommandCase {
 protected:
  void SetUp() override {
    ServedCommandCase::SetUp();
    setenv("FSDPD_CONFIG", config_.c_str(), 1);
    server_.on_list = [](const v1::ListJobsRequest& request, v1::ListJobsResponse* response) {
      const auto add = [&](const char* id, v1::JobState state, double loss) {
        v1::Job* job = response->add_jobs();
        job->set_id(id);
        job->set_state(state);
        if (loss > 0) job->mutable_last_step()->set_loss(loss);
      };
      add("tiny-b2", v1::JOB_STATE_RUNNING, 2);
      add("tiny-a1", v1::JOB_STATE_QUEUED, 0);
      if (request.page_size() != 2) add("big-c3", v1::JOB_STATE_RUNNING, 12);
      return grpc::Status::OK;
    };
    server_.on_get = [](const v1::GetJobRequest& request, v1::GetJobResponse* response) {
      if (request.id() != "tiny-b2" && request.id() != "big-c3")
        return RefusalWithDetails(grpc::StatusCode::NOT_FOUND, "no such job", "JOB_NOT_FOUND");
      response->mutable_job()->set_id(request.id());
      response->mutable_job()->set_state(v1::JOB_STATE_RUNNING);
      response->mutable_job()->mutable_spec()->set_name("a");
      response->mutable_job()->mutable_spec()->mutable_model()->set_preset("tiny");
      return grpc::Status::OK;
    };
  }
  void TearDown() override {
    unsetenv("FSDPD_CONFIG");
    ServedCommandCase::TearDown();
  }

  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_.File(name)) << text;
    return dir_.File(name);
  }

  TempDir dir_;
  const std::string config_ = dir_.File("contexts.yaml");
};

}  // namespace fsdpd
