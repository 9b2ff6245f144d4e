// Watch of one job until it ends or meets a condition, across lost connections and restarts of the
// coordinator. It resumes by revision, so that no change is delivered twice, and by attempt and step for step
// reports.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <functional>
#include <string>

#include "client/connect/coordinator_client.h"
#include "client/text/interrupt.h"

namespace fsdpd {

// Receives updates in order, on the thread that called FollowJob().
class JobObserver {
 public:
  virtual ~JobObserver() = default;
  virtual void OnJob(const v1::Job& job) = 0;  // The current job first, then each change.
  // Called after the first OnJob(). Steps of an attempt are strictly increasing.
  virtual void OnStep(const v1::StepReport& report) = 0;
  virtual void OnConnectionLost(const absl::Status& why) = 0;
  virtual void OnConnectionBack() = 0;
};

struct FollowOptions {
  absl::Duration reconnect_for = absl::Seconds(60);  // Since the last message.
  absl::Duration pause = absl::Milliseconds(500);    // Between attempts to reconnect.
  // Also ends the watch when it returns true. Default: only the end of the job does.
  std::function<bool(const v1::Job&)> until = nullptr;
};

// Lets a polling loop tolerate a coordinator that does not answer, for as long as FollowJob() does.
class Outage {
 public:
  // `status`: of the newest call. True if no coordinator responded and a later call may succeed.
  bool IsTolerable(const absl::Status& status);

 private:
  absl::Time heard_ = absl::Now();
};

// Returns the job at that point. UNAVAILABLE: the connection could not be restored. CANCELLED: `interrupt`
// fired. Any other error is from the coordinator.
absl::StatusOr<v1::Job> FollowJob(CoordinatorClient* client, const std::string& id,
                                  const FollowOptions& options, Interrupt* interrupt, JobObserver* observer);

}  // namespace fsdpd
