#include "coordinator/access/permissions.h"

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {
namespace {

const google::protobuf::ServiceDescriptor& Api() {
  return *v1::Job::descriptor()->file()->FindServiceByName("Coordinator");
}

TEST(Permissions, EveryApiMethodHasARow) {
  ASSERT_GT(Api().method_count(), 0);
  for (int i = 0; i < Api().method_count(); ++i) {
    EXPECT_TRUE(IsListed(Api().method(i)->name()))
        << Api().method(i)->name()
        << " is for admins alone until coordinator/access/permissions.cc says who may call it";
  }
}

TEST(Permissions, UnlistedMethodIsForAdminsAndAudited) {
  const Permission& unknown = PermissionOf("FormatAllDisks");
  EXPECT_FALSE(IsListed("FormatAllDisks"));
  EXPECT_EQ(unknown.role, PrincipalRole::kAdmin);
  EXPECT_EQ(unknown.own, PrincipalRole::kAdmin);
  EXPECT_TRUE(unknown.changes);
}

// As documented in docs/deploy.md.
TEST(Permissions, JobChangesNeedOwnerOrOperatorAndNodesNeedOperator) {
  EXPECT_EQ(PermissionOf("SubmitJob").role, PrincipalRole::kSubmitter);
  for (const char* of_a_job : {"CancelJob", "PauseJob", "ResumeJob", "RetryJob", "DeleteJob", "TraceJob"}) {
    const Permission& row = PermissionOf(of_a_job);
    EXPECT_EQ(row.role, PrincipalRole::kOperator) << of_a_job;
    EXPECT_EQ(row.own, PrincipalRole::kSubmitter) << of_a_job;
    EXPECT_TRUE(row.changes) << of_a_job;
  }
  for (const char* of_a_node : {"CordonNode", "UncordonNode", "DrainNode", "DeleteNode"}) {
    const Permission& row = PermissionOf(of_a_node);
    EXPECT_EQ(row.role, PrincipalRole::kOperator) << of_a_node;
    EXPECT_EQ(row.own, PrincipalRole::kOperator) << of_a_node;
    EXPECT_TRUE(row.changes) << of_a_node;
  }
}

TEST(Permissions, OwnJobsNeedNoHigherRole) {
  for (int i = 0; i < Api().method_count(); ++i) {
    const Permission& row = PermissionOf(Api().method(i)->name());
    EXPECT_LE(row.own, row.role) << row.method;
    if (row.own != row.role) {
      EXPECT_NE(Api().method(i)->input_type()->FindFieldByName("id"), nullptr)
          << row.method << " names no job whose submitter could be asked for";
    }
  }
}

TEST(Permissions, SideEffectsAreNotForViewers) {
  for (int i = 0; i < Api().method_count(); ++i) {
    const Permission& row = PermissionOf(Api().method(i)->name());
    EXPECT_TRUE(!row.changes || row.own > PrincipalRole::kViewer) << row.method;
  }
}

}  // namespace
}  // namespace fsdpd
