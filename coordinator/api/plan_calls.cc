#include "coordinator/api/plan_calls.h"

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>

#include <algorithm>

#include "base/check.h"
#include "base/check_guard.h"
#include "base/limits.h"
#include "coordinator/admission/job_size.h"
#include "coordinator/request/errors.h"
#include "fsdp/plan/prediction.h"
#include "fsdp/plan/search/candidates.h"
#include "fsdp/plan/search/search.h"

namespace fsdpd {
namespace {

// A search ends before its client's deadline, and uses one core for at most kMaxSearch.
constexpr double kShareOfWait = 0.8;
constexpr absl::Duration kMaxSearch = absl::Seconds(30);

absl::Duration TimeFor(const grpc::ServerContext& context) {
  const absl::Duration wait = absl::FromChrono(context.deadline()) - absl::Now();
  return std::clamp(kShareOfWait * wait, absl::Milliseconds(1), kMaxSearch);
}

template <typename Request>
absl::Status CheckGiven(const Request& request, const DeviceProfile& given) {
  if (!request.has_profile()) return absl::OkStatus();
  Violations violations = CheckProfile(given);
  for (Violation& violation : violations) violation.field = absl::StrCat("profile.", violation.field);
  return violations.empty() ? absl::OkStatus() : BadSpec(violations);
}

// RAII lock without waiting: held by the first caller, for the lifetime of this object.
class Turn {
 public:
  explicit Turn(std::atomic<bool>* taken) : taken_(taken), mine_(!taken->exchange(true)) {}
  ~Turn() {
    if (mine_) *taken_ = false;
  }
  bool mine() const { return mine_; }

 private:
  std::atomic<bool>* const taken_;
  const bool mine_;
};

}  // namespace

absl::Status PlanCalls::PlanJob(const ApiCall&, const v1::PlanJobRequest& request,
                                v1::PlanJobResponse* response) {
  FSDPD_RETURN_IF_ERROR(CheckSize(request.spec()));
  const DeviceProfile given = FromProto(request.profile());
  FSDPD_RETURN_IF_ERROR(CheckGiven(request, given));
  const Plan plan = admission_->Examine(request.spec(), given.budget_bytes()).plan;
  if (!plan.accepted()) return BadSpec(plan.violations);
  *response->mutable_plan() = ToProto(plan);
  const absl::Status predicted = GuardChecks([&] {
    AddPrediction(plan, request.has_profile() ? given : DefaultProfile(plan.spec.device), request.timeline(),
                  response->mutable_plan());
  });
  if (!predicted.ok()) return BadSpec({CompilerBug(request.spec(), predicted)});
  if (response->ByteSizeLong() <= kMaxRpcBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("plan: too large for one message (got ", plan.program.instructions.size(),
                   " instructions); use fewer micro-batches, or `fsdpctl plan --offline`"));
}

absl::Status PlanCalls::Search(const ApiCall& call, const v1::SearchPlansRequest& request,
                               v1::PlanSearch* search) {
  FSDPD_RETURN_IF_ERROR(CheckSize(request.spec()));
  const DeviceProfile given = FromProto(request.profile());
  FSDPD_RETURN_IF_ERROR(CheckGiven(request, given));
  SearchOptions options;
  options.held = {request.hold().begin(), request.hold().end()};
  if (const Violations violations = CheckHeld(options.held); !violations.empty()) return BadSpec(violations);
  const PlanInputs inputs = admission_->PlanInputsOf(request.spec());
  if (!inputs.violations.empty()) return BadSpec(inputs.violations);
  options.budget_bytes_per_rank = request.has_profile() ? given.budget_bytes() : inputs.bytes_per_rank;
  const absl::Time begin = clock_->Now();
  const absl::Duration time = TimeFor(*call.context);
  options.spent = [&] {
    if (!call.CheckOpen().ok()) return kCancelled;
    return absl::FDivDuration(clock_->Now() - begin, time);
  };
  Searched searched = fsdpd::SearchPlans(
      request.spec(), request.has_profile() ? given : DefaultProfile(inputs.device), options);
  if (call.IsClosing())
    return absl::UnavailableError("search: cancelled because the coordinator is stopping");
  if (HasErrors(searched.violations)) return BadSpec(searched.violations);
  *search = std::move(searched.search);
  const bool named = request.spec().resources().has_memory_budget_bytes();
  search->set_budget_from_profile(options.budget_bytes_per_rank == 0 && !named &&
                                  search->budget_bytes() > 0 && !request.has_profile());
  search->set_seconds(absl::ToDoubleSeconds(clock_->Now() - begin));
  return absl::OkStatus();
}

absl::Status PlanCalls::SearchPlans(const ApiCall& call, const v1::SearchPlansRequest& request,
                                    v1::SearchPlansResponse* response) {
  const Turn turn(&searching_);
  if (turn.mine()) return Search(call, request, response->mutable_search());
  return absl::ResourceExhaustedError(
      "coordinator: another search is running; retry in a few seconds, or use "
      "`fsdpctl plan --search --offline`");
}

}  // namespace fsdpd
