// Follows one job to its end, or to what else is waited for, across lost connections and coordinator
// restarts: by revision, so that no change is seen twice, and by attempt and step, so that no step is.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <functional>
#include <string>

#include "client/coordinator_client.h"
#include "client/interrupt.h"

namespace fsdpd {

// Called on the thread that follows, in the order in which things happened.
class JobObserver {
 public:
  virtual ~JobObserver() = default;
  virtual void OnJob(const v1::Job& job) = 0;  // The job now, then each change of it.
  // REQUIRES of the caller: OnJob() came first. Steps of an attempt only grow.
  virtual void OnStep(const v1::StepReport& report) = 0;
  virtual void OnConnectionLost(const absl::Status& why) = 0;
  virtual void OnConnectionBack() = 0;
};

struct FollowOptions {
  absl::Duration reconnect_for = absl::Seconds(60);  // From the last thing heard.
  absl::Duration pause = absl::Milliseconds(500);    // Between attempts to reconnect.
  // Whether the job is as the caller wants it, which ends the following too. Default: only an end does.
  std::function<bool(const v1::Job&)> until = nullptr;
};

// Lets a polling loop tolerate a coordinator that does not answer, for as long as FollowJob() does.
class Outage {
 public:
  // `status`: of the newest call. True if it failed because nobody answered, and the next may succeed.
  bool IsTolerable(const absl::Status& status);

 private:
  absl::Time heard_ = absl::Now();
};

// The job as it was then. UNAVAILABLE: the connection stayed lost. CANCELLED: `interrupt` fired. Any other
// error is the coordinator's.
absl::StatusOr<v1::Job> FollowJob(CoordinatorClient* client, const std::string& id,
                                  const FollowOptions& options, Interrupt* interrupt, JobObserver* observer);

}  // namespace fsdpd
