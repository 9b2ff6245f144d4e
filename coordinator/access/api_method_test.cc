#include "coordinator/access/api_method.h"

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <vector>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {
namespace {

using google::protobuf::MethodDescriptor;

std::vector<const MethodDescriptor*> Methods() {
  const auto* const service = v1::Job::descriptor()->file()->FindServiceByName("Coordinator");
  std::vector<const MethodDescriptor*> methods;
  for (int i = 0; i < service->method_count(); ++i) methods.push_back(service->method(i));
  return methods;
}

TEST(ApiMethod, EveryApiMethodHasARow) {
  ASSERT_FALSE(Methods().empty());
  for (const MethodDescriptor* each : Methods()) {
    const ApiMethod* const method = FindApiMethod(each->name());
    ASSERT_NE(method, nullptr) << each->name()
                               << " is not served until base/api/api_table.h says who may call it";
    EXPECT_EQ(method->streams, each->server_streaming()) << each->name();
  }
  EXPECT_EQ(FindApiMethod("FormatAllDisks"), nullptr);
}

// As documented in docs/deploy.md.
TEST(ApiMethod, JobChangesNeedOwnerOrOperatorAndNodesNeedOperator) {
  EXPECT_EQ(FindApiMethod("SubmitJob")->role, PrincipalRole::kSubmitter);
  for (const char* of_a_job : {"CancelJob", "PauseJob", "ResumeJob", "RetryJob", "DeleteJob", "TraceJob"}) {
    const ApiMethod& row = *FindApiMethod(of_a_job);
    EXPECT_EQ(row.role, PrincipalRole::kOperator) << of_a_job;
    EXPECT_EQ(row.own, PrincipalRole::kSubmitter) << of_a_job;
    EXPECT_TRUE(row.changes) << of_a_job;
  }
  for (const char* of_a_node : {"CordonNode", "UncordonNode", "DrainNode", "DeleteNode"}) {
    const ApiMethod& row = *FindApiMethod(of_a_node);
    EXPECT_EQ(row.role, PrincipalRole::kOperator) << of_a_node;
    EXPECT_EQ(row.own, PrincipalRole::kOperator) << of_a_node;
    EXPECT_TRUE(row.changes) << of_a_node;
  }
}

TEST(ApiMethod, OwnJobsNeedNoHigherRole) {
  for (const MethodDescriptor* each : Methods()) {
    const ApiMethod& row = *FindApiMethod(each->name());
    EXPECT_LE(row.own, row.role) << row.name;
    if (row.own != row.role) {
      EXPECT_NE(each->input_type()->FindFieldByName("id"), nullptr)
          << row.name << " names no job whose submitter could be asked for";
    }
  }
}

TEST(ApiMethod, SideEffectsAreNotForViewers) {
  for (const MethodDescriptor* each : Methods()) {
    const ApiMethod& row = *FindApiMethod(each->name());
    EXPECT_TRUE(!row.changes || row.own > PrincipalRole::kViewer) << row.name;
  }
}

}  // namespace
}  // namespace fsdpd
