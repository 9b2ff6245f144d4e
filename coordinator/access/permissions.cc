#include "coordinator/access/permissions.h"

namespace fsdpd {
namespace {

constexpr PrincipalRole kViewer = PrincipalRole::kViewer, kSubmitter = PrincipalRole::kSubmitter,
                        kOperator = PrincipalRole::kOperator;

constexpr Permission kTable[] = {
    {"GetVersion", kViewer, kViewer, false},
    {"GetJob", kViewer, kViewer, false},
    {"ListJobs", kViewer, kViewer, false},
    {"WatchJob", kViewer, kViewer, false},
    {"TailLogs", kViewer, kViewer, false},
    {"ListSteps", kViewer, kViewer, false},
    {"GetStepTimeline", kViewer, kViewer, false},
    {"ListNodes", kViewer, kViewer, false},
    {"ListEvents", kViewer, kViewer, false},
    {"WatchEvents", kViewer, kViewer, false},
    // No side effects, but planning a large model takes seconds of the coordinator's CPU.
    {"ValidateJob", kSubmitter, kSubmitter, false},
    {"PlanJob", kSubmitter, kSubmitter, false},
    {"SearchPlans", kSubmitter, kSubmitter, false},
    {"SubmitJob", kSubmitter, kSubmitter, true},
    {"CancelJob", kOperator, kSubmitter, true},
    {"PauseJob", kOperator, kSubmitter, true},
    {"ResumeJob", kOperator, kSubmitter, true},
    {"RetryJob", kOperator, kSubmitter, true},
    {"DeleteJob", kOperator, kSubmitter, true},
    // Ranks record a trace and write files on their nodes.
    {"TraceJob", kOperator, kSubmitter, true},
    {"CordonNode", kOperator, kOperator, true},
    {"UncordonNode", kOperator, kOperator, true},
    {"DrainNode", kOperator, kOperator, true},
    {"DeleteNode", kOperator, kOperator, true},
    // No job is placed there meanwhile, and a node below the limits is cordoned.
    {"PreflightNode", kOperator, kOperator, true},
};

constexpr Permission kUnlisted = {"", PrincipalRole::kAdmin, PrincipalRole::kAdmin, true};

const Permission* Find(absl::string_view method) {
  for (const Permission& row : kTable) {
    if (row.method == method) return &row;
  }
  return nullptr;
}

}  // namespace

const Permission& PermissionOf(absl::string_view method) {
  const Permission* row = Find(method);
  return row == nullptr ? kUnlisted : *row;
}

bool IsListed(absl::string_view method) { return Find(method) != nullptr; }

}  // namespace fsdpd
