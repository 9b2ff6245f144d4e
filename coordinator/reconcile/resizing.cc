// Reconciler: elastic world size: whether a job is launched with all its ranks or with fewer (elastic.h).
#include <absl/strings/str_cat.h>

#include "base/log.h"
#include "coordinator/job/elastic.h"
#include "coordinator/job/job_plan.h"
#include "coordinator/reconcile/reconciler.h"
#include "fsdp/plan/spec/defaults.h"

namespace fsdpd {

// Places the job like Decide(). `quotas`: the ranks of its current plan are within them.
PlaceDecision Reconciler::DecideWorld(LiveJob* live, const std::vector<NodeSlots>& nodes,
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
    if (live->job.has_shrunk()) MarkUnsaved(live);
    live->job = whole;
    return decision;
  }
  if (!live->short_since.has_value()) live->short_since = lease_.now();
  const absl::Duration wait = ShrinkWait(live->job);
  if (lease_.Settled() && lease_.now() - *live->short_since >= wait)
    return Shrink(live, nodes, decision.reason, plans);
  decision.possible = true;  // It keeps its place on the remaining nodes.
  absl::StrAppend(&decision.reason, "; continues with fewer ranks after waiting ",
                  absl::FormatDuration(wait));
  return decision;
}

// Places the largest world size that has free nodes and a valid plan.
PlaceDecision Reconciler::Shrink(LiveJob* live, const std::vector<NodeSlots>& nodes, const std::string& why,
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
      const Plan plan = parts_.plan(spec, offer.bytes_per_rank);
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
    MarkUnsaved(live);
    return decision;
  }
  return waits;
}

}  // namespace fsdpd
