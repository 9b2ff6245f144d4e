#include "coordinator/reconcile/world_chooser.h"

#include <absl/strings/str_cat.h>

#include "base/log.h"
#include "coordinator/attempt/failure_policy.h"
#include "coordinator/job/elastic.h"
#include "coordinator/job/job_plan.h"
#include "fsdp/plan/spec/defaults.h"

namespace fsdpd {
namespace {

// Per tick: planning a large model takes a good part of a second, and rejecting one takes longer.
constexpr int kMaxPlansPerTick = 1;

}  // namespace

PlaceRequest RequestAgain(const v1::Job& job) {
  PlaceRequest request = RequestOf(job);
  for (const v1::Job::Placement& placement : job.placements()) request.before.insert(placement.node());
  request.avoided = NodesToAvoid(job);
  return request;
}

PlaceDecision WorldChooser::Choose(LiveJob* live, const std::vector<NodeSlots>& nodes,
                                   const RemainingQuotas& quotas, int* plans) {
  if (!MayShrink(live->job)) return Decide(live, nodes, plans);
  const v1::Job whole = WithAllRanks(live->job);
  PlaceDecision decision = Place(RequestAgain(whole), nodes);
  if (decision.placed() && live->job.has_shrunk() && !quotas.Allows(whole.project(), RanksOf(whole))) {
    decision.placements.clear();
    decision.reason = absl::StrCat("the quota of project ", whole.project(), " does not allow all ranks");
  }
  if (decision.placed()) {
    if (live->job.has_shrunk()) absl::StrAppend(&decision.reason, ", its full world size again");
    // As in ClosePlan(): stored with the launch at the latest.
    if (live->job.has_shrunk()) jobs_->MarkUnsaved(live);
    live->job = whole;
    return decision;
  }
  if (!live->short_since.has_value()) live->short_since = presence_->now();
  const absl::Duration wait = ShrinkWait(live->job);
  if (presence_->Settled() && presence_->now() - *live->short_since >= wait)
    return Shrink(live, nodes, decision.reason, plans);
  decision.possible = true;  // It keeps its place on the remaining nodes.
  absl::StrAppend(&decision.reason, "; continues with fewer ranks after waiting ",
                  absl::FormatDuration(wait));
  return decision;
}

// Places the largest world size that has free nodes and a valid plan.
PlaceDecision WorldChooser::Shrink(LiveJob* live, const std::vector<NodeSlots>& nodes, const std::string& why,
                                   int* plans) {
  PlaceDecision waits;
  waits.reason = absl::StrCat(why, "; it cannot continue with fewer ranks either");
  waits.possible = false;
  for (const World& world : SmallerWorlds(live->job.spec())) {
    const v1::JobSpec spec = InWorld(live->job.spec(), world);
    const PlaceRequest request = RequestOf(WithDefaults(spec, nullptr));
    const NodeCount count = CountNodes(request, nodes);
    const MemoryOffer offer = OfferTo(request, nodes);
    const auto tried =
        std::make_tuple(world.nodes, world.ranks_per_node, offer.bytes_per_rank, offer.host_bytes);
    if (live->refused_worlds.count(tried) != 0) continue;
    waits.possible |= count.idle >= request.nodes;
    if (count.now < request.nodes) continue;
    v1::Job smaller = live->job;
    if (IsIn(world, live->job)) {
      smaller.mutable_shrunk()->set_reason(why);
    } else {
      if (++*plans > kMaxPlansPerTick) return {{}, "", /*possible=*/true};
      const Plan plan = plan_(spec, offer.bytes_per_rank);
      if (!plan.accepted()) {
        LogInfo("smaller world size skipped job=%s nodes=%d ranks_per_node=%d reason=%s", live->job.id(),
                world.nodes, world.ranks_per_node, WhyRefused(plan));
        live->refused_worlds.insert(tried);
        continue;
      }
      KeepShrunk(plan, why, &smaller);
    }
    PlaceDecision decision = Place(RequestAgain(smaller), nodes);
    if (!decision.placed()) {
      live->refused_worlds.insert(tried);
      continue;
    }
    decision.reason = ShrunkReason(smaller, decision);
    live->job = std::move(smaller);
    jobs_->MarkUnsaved(live);
    return decision;
  }
  return waits;
}

// An open plan is made first, once there are nodes to plan for.
PlaceDecision WorldChooser::Decide(LiveJob* live, const std::vector<NodeSlots>& slots, int* plans) {
  if (!IsPlanOpen(live->job)) return Place(RequestAgain(live->job), slots);
  const MemoryOffer offer = OfferTo(RequestOf(live->job), slots);
  if (LeavesPlanOpen(live->job.spec(), offer)) return Place(RequestAgain(live->job), slots);
  PlaceDecision waits;
  if (live->refused_offer != offer.bytes_per_rank) {
    if (++*plans > kMaxPlansPerTick || !ClosePlan(live, offer.bytes_per_rank).ok()) return waits;
    if (!IsPlanOpen(live->job)) return Place(RequestAgain(live->job), slots);
  }
  waits.possible = false;  // Not on the present nodes.
  waits.reason = absl::StrCat("does not fit the present nodes: ", live->refusal);
  return waits;
}

// If only nodes with more memory could help, the job waits for them; any other rejection (a bug, or a rule
// newer than the job) ends it. An error is the store's.
absl::Status WorldChooser::ClosePlan(LiveJob* live, int64_t offer_bytes) {
  const Plan plan = plan_(live->job.spec(), offer_bytes);
  if (plan.accepted()) {
    KeepPlan(plan, /*open=*/false, &live->job);
    jobs_->MarkUnsaved(live);
    return absl::OkStatus();
  }
  const std::string why = WhyRefused(plan);
  if (IsOnlyTooLarge(plan)) {
    live->refused_offer = offer_bytes;
    live->refusal = why;
    return absl::OkStatus();
  }
  return GiveUp(live, why);
}

absl::Status WorldChooser::GiveUp(LiveJob* live, const std::string& why) {
  return jobs_->GiveUp(live, absl::StrCat("cannot be launched: ", why));
}

}  // namespace fsdpd
