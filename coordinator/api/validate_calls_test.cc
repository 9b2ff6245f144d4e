// ValidateJob: the warnings of a submit without submitting, tested with a whole coordinator in one process.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "coordinator/testing/scripted_agent.h"
#include "coordinator/testing/served_case.h"
#include "coordinator/testing/tiny_spec.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

using ValidateCallsTest = ServedCase;

// The warnings of one rule in a response.
template <typename Response>
std::vector<std::string> Warned(const Response& response, const std::string& rule) {
  std::vector<std::string> reasons;
  for (const v1::Violation& fault : response.violations()) {
    if (fault.rule() == rule) reasons.push_back(fault.reason());
  }
  return reasons;
}

// The spec is accepted, because nodes may connect later; the validation predicts the submit.
TEST_F(ValidateCallsTest, WarnsAboutDeviceWithoutNodes) {
  ScriptedAgent agent(server_->address(), ScriptedAgent::Options{"node-0", 1, "first", {}, 0});
  ASSERT_TRUE(agent.AwaitWelcome());
  for (const v1::Device device : {v1::DEVICE_CPU, v1::DEVICE_CUDA}) {
    v1::JobSpec spec = TinySpec();
    spec.mutable_resources()->set_device(device);
    v1::ValidateJobRequest rehearsal;
    *rehearsal.mutable_spec() = spec;
    grpc::ClientContext asks;
    v1::ValidateJobResponse told;
    ASSERT_TRUE(stub_->ValidateJob(&asks, rehearsal, &told).ok());
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    grpc::ClientContext submits;
    v1::SubmitJobResponse response;
    ASSERT_TRUE(stub_->SubmitJob(&submits, request, &response).ok());
    const std::vector<std::string> warned = Warned(response, "no_node_could_take_it");
    EXPECT_EQ(Warned(told, "no_node_could_take_it"), warned);
    EXPECT_EQ(told.violations_size(), response.violations_size());
    ASSERT_EQ(warned.size(), device == v1::DEVICE_CUDA ? 1U : 0U);
    for (const std::string& reason : warned) EXPECT_THAT(reason, HasSubstr("no cuda agent is connected"));
  }
}

}  // namespace
}  // namespace fsdpd
