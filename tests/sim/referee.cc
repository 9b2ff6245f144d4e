#include "tests/sim/referee.h"

#include <absl/strings/match.h>

#include <algorithm>
#include <utility>

#include "coordinator/nodes/agent_lease.h"

namespace fsdpd::sim {
namespace {

constexpr absl::Duration kReattach = absl::Seconds(15);

std::string Name(v1::JobState state) { return v1::JobState_Name(state).substr(sizeof("JOB_STATE_") - 1); }

bool Ended(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

// Allowed transitions by state, as documented in docs/concepts.md.
const std::map<v1::JobState, std::set<v1::JobState>>& Edges() {
  static const auto& edges = *new std::map<v1::JobState, std::set<v1::JobState>>{
      {v1::JOB_STATE_QUEUED,
       {v1::JOB_STATE_STARTING, v1::JOB_STATE_PREFLIGHT, v1::JOB_STATE_CANCELLED, v1::JOB_STATE_FAILED,
        v1::JOB_STATE_CANCELLING, v1::JOB_STATE_PAUSED}},
      {v1::JOB_STATE_PREFLIGHT,
       {v1::JOB_STATE_STARTING, v1::JOB_STATE_QUEUED, v1::JOB_STATE_CANCELLED, v1::JOB_STATE_CANCELLING,
        v1::JOB_STATE_PAUSED}},
      {v1::JOB_STATE_STARTING,
       {v1::JOB_STATE_RUNNING, v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_STOPPING, v1::JOB_STATE_CANCELLING,
        v1::JOB_STATE_PAUSING}},
      {v1::JOB_STATE_RUNNING,
       {v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_STOPPING, v1::JOB_STATE_CANCELLING, v1::JOB_STATE_PAUSING}},
      {v1::JOB_STATE_STOPPING,
       {v1::JOB_STATE_QUEUED, v1::JOB_STATE_FAILED, v1::JOB_STATE_CANCELLING, v1::JOB_STATE_PAUSING}},
      {v1::JOB_STATE_CANCELLING, {v1::JOB_STATE_CANCELLED}},
      {v1::JOB_STATE_PAUSING, {v1::JOB_STATE_PAUSED, v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_CANCELLING}},
      {v1::JOB_STATE_PAUSED, {v1::JOB_STATE_QUEUED, v1::JOB_STATE_CANCELLED, v1::JOB_STATE_CANCELLING}},
      {v1::JOB_STATE_FAILED, {}},     // Except by a retry.
      {v1::JOB_STATE_CANCELLED, {}},  // Except by a retry.
      {v1::JOB_STATE_SUCCEEDED, {}},
  };
  return edges;
}

// Attempts that count against restart.max_attempts, as defined in coordinator.proto.
int CountedAttempts(const v1::Job& job) {
  return job.attempt() - job.refused_launches() - job.attempts_before_checkpoint() -
         job.rewinds_since_checkpoint() - job.drains_since_checkpoint();
}

}  // namespace

bool Referee::Has(const Asked& asked, const std::string& id, const std::string& what) {
  const auto it = asked.find(id);
  return it != asked.end() && it->second.count(what) != 0;
}

void Referee::CoordinatorBegins(StateStore* store, bool counted, const RanksByProject& quotas) {
  life_began_ = world_->now();
  quotas_ = quotas;
  preempted_.clear();
  all_written_ = true;
  // A run that could not write left no trace, and its generations may be reused.
  if (!counted_) newest_generation_ = generation_before_;
  generation_before_ = newest_generation_;
  counted_ = counted;
  heard_.clear();
  shown_.clear();
  revisions_.clear();
  accounts_.Begins(&store->events());
  CheckStore(store);
}

void Referee::CoordinatorEnds() {
  watches_.clear();
  accounts_.Ends();
}

// Checks that every acknowledged job is stored as it was last written.
void Referee::CheckStore(StateStore* store) {
  for (auto& [id, copy] : copies_) {
    const absl::StatusOr<v1::Job> job = store->Get(id);
    if (!job.ok() && !absl::IsNotFound(job.status()))
      return world_->ReportViolation(absl::StrCat("job ", id, ": cannot be read: ", job.status().ToString()));
    std::optional<std::string> bytes;
    if (job.ok()) bytes = job->SerializeAsString();
    bool expected = bytes == copy.known;
    for (const auto& perhaps : copy.perhaps) expected |= bytes == perhaps;
    if (!expected)
      return world_->ReportViolation(absl::StrCat(
          "job ", id, ": differs from its stored record after a restart (got ",
          job.ok() ? absl::StrCat(Name(job->state()), " of revision ", job->revision()) : "nothing", ")"));
    copy.known = bytes;
    copy.perhaps.clear();
    job.ok() ? Know(*job) : Forget(id);
  }
  const absl::StatusOr<v1::ListNodesResponse> nodes = store->Nodes();
  if (!nodes.ok())
    return world_->ReportViolation(absl::StrCat("nodes: cannot be read: ", nodes.status().ToString()));
  // If the machine died during a call, a part of it may be stored.
  nodes_.clear();
  for (const v1::Node& node : nodes->nodes()) nodes_.insert(node.name());
}

void Referee::CheckNodes(const std::vector<NodeView>& known) {
  std::set<std::string> names;
  for (const NodeView& node : known) names.insert(node.info.node());
  for (const std::string& name : nodes_) {
    if (names.count(name) == 0)
      world_->ReportViolation(absl::StrCat("node ", name, ": stored but unknown after a restart"));
  }
}

void Referee::StoredNodes(const v1::ListNodesResponse& changed, const std::vector<std::string>& gone) {
  for (const v1::Node& node : changed.nodes()) nodes_.insert(node.name());
  for (const std::string& name : gone) nodes_.erase(name);
}

// A succeeded job satisfies dependencies even after it is deleted.
void Referee::Forget(const std::string& id) {
  const auto it = known_.find(id);
  if (it != known_.end() && it->second.state != v1::JOB_STATE_SUCCEEDED) known_.erase(it);
}

void Referee::Know(const v1::Job& job) {
  Known known;
  known.state = job.state();
  known.project = job.project();
  known.priority = job.spec().priority();
  for (const v1::Job::Placement& placement : job.placements()) {
    known.ranks += placement.ranks();
    known.nodes.push_back(placement.node());
  }
  known_[job.id()] = std::move(known);
}

void Referee::StreamOpened(const std::string& node, int64_t stream_generation) {
  if (stream_generation <= newest_generation_)
    world_->ReportViolation(absl::StrCat("stream of ", node, ": generation ", stream_generation,
                                         " is not newer than ", newest_generation_));
  newest_generation_ = std::max(newest_generation_, stream_generation);
  Heard(node);
}

void Referee::Heard(const std::string& node) { heard_[node] = world_->now(); }

// Whether the coordinator may consider the node lost.
bool Referee::Silent(const std::string& node) const {
  const auto it = heard_.find(node);
  return it == heard_.end() ? world_->now() - life_began_ >= kReattach
                            : world_->now() - it->second >= AgentLease::kLostAfter;
}

void Referee::AfterTick(JobBoard* board) {
  accounts_.ReadFeed();
  for (const auto& [node, slots] : slots_) {
    if (Silent(node)) attempts_.Silent(node);
  }
  for (const auto& job : board->Live()) {
    std::shared_ptr<JobWatch>& watch = watches_[job->id()];
    if (watch == nullptr) watch = board->Watch(job->id(), /*after_revision=*/-1);
  }
  for (auto it = watches_.begin(); it != watches_.end();) {
    v1::WatchJobResponse update;
    JobWatch::Got got = JobWatch::Got::kEnd;
    while (it->second != nullptr &&
           (got = it->second->Next(absl::ZeroDuration(), &update)) == JobWatch::Got::kUpdate) {
      if (update.has_job()) CheckShown(update.job());
    }
    it = got == JobWatch::Got::kEnd ? watches_.erase(it) : std::next(it);
  }
  for (const auto& live : board->Live()) {
    v1::Job job = *live;
    board->AddWaiting(&job);
    const bool waits = job.state() == v1::JOB_STATE_QUEUED || job.state() == v1::JOB_STATE_PAUSED;
    if (waits && job.waiting().code() == v1::Job::Waiting::CODE_UNSPECIFIED)
      world_->ReportViolation(
          absl::StrCat("job ", job.id(), ": is ", Name(job.state()), " without a reason to wait"));
  }
}

void Referee::CheckShown(const v1::Job& job) {
  const auto before = shown_.find(job.id());
  if (before != shown_.end() && before->second != job.state()) {
    v1::JobState from = before->second;
    // A retried job may be launched before a watcher sees it queued.
    if (Ended(from) && Has(asked_, job.id(), "retry")) from = v1::JOB_STATE_QUEUED;
    if (from != job.state() && Edges().at(from).count(job.state()) == 0)
      world_->ReportViolation(absl::StrCat("job ", job.id(), ": invalid transition from ", Name(from), " to ",
                                           Name(job.state())));
  }
  if (before == shown_.end() || before->second != job.state())
    world_->Log("job ", job.id(), " attempt=", job.attempt(), " state=", Name(job.state()), ": ",
                job.reason());
  if (revisions_[job.id()] > job.revision())
    world_->ReportViolation(absl::StrCat("job ", job.id(), ": revision decreased from ", revisions_[job.id()],
                                         " to ", job.revision()));
  revisions_[job.id()] = job.revision();
  shown_[job.id()] = job.state();
  accounts_.Shown(job);
  CheckPreemption(job);
  if (job.state() == v1::JOB_STATE_CANCELLING && !Has(asked_, job.id(), "cancel"))
    world_->ReportViolation(absl::StrCat("job ", job.id(), ": is being cancelled without a request"));
  const bool pauses = job.state() == v1::JOB_STATE_PAUSED || job.state() == v1::JOB_STATE_PAUSING;
  const bool moves = drained_.count(job.pause().drained_from()) != 0;
  if (pauses && !moves && job.pause().preempted_by().empty() && !Has(asked_, job.id(), "pause"))
    world_->ReportViolation(absl::StrCat("job ", job.id(), ": paused without a request"));
  for (const v1::SavedCheckpoint& saved : job.checkpoints()) {
    if (ranks_->Saved(job.spec().checkpoint().dir()).count(saved.step()) == 0)
      world_->ReportViolation(absl::StrCat("job ", job.id(), ": lists a checkpoint of step ", saved.step(),
                                           ", which does not exist"));
  }
}

// Only preemptible jobs are preempted, and only for a job with precedence. The attempt does not count unless
// a rank failed before the job had left.
void Referee::CheckPreemption(const v1::Job& job) {
  const auto before = preempted_.find(job.id());
  const bool not_preemptible =
      job.state() == v1::JOB_STATE_PAUSING && !job.pause().preempted_by().empty() && !job.preemptible();
  if (not_preemptible)
    world_->ReportViolation(absl::StrCat("job ", job.id(), ": preempted, but is not preemptible"));
  if (job.state() == v1::JOB_STATE_PAUSING && !job.pause().preempted_by().empty()) {
    const auto head = known_.find(job.pause().preempted_by());
    if (head == known_.end())
      return world_->ReportViolation(absl::StrCat("job ", job.id(), ": preempted by an unknown job"));
    if (!job.backfilled() && head->second.priority <= job.spec().priority())
      world_->ReportViolation(absl::StrCat("job ", job.id(), ": preempted by ", head->first, " of priority ",
                                           head->second.priority));
    preempted_[job.id()] = {job.attempt(), CountedAttempts(job)};
    return;
  }
  if (before == preempted_.end()) return;
  const Preempted was = before->second;
  preempted_.erase(before);
  if (job.state() != v1::JOB_STATE_PAUSED && job.state() != v1::JOB_STATE_QUEUED) return;
  const bool failed = std::any_of(job.failed_attempts().begin(), job.failed_attempts().end(),
                                  [&](const auto& each) { return each.attempt() == was.attempt; });
  if (!failed && CountedAttempts(job) >= was.counted)
    world_->ReportViolation(absl::StrCat("job ", job.id(), ": preempted attempt ", was.attempt, " counts"));
}

// Guarantees of a shared cluster at each launch: number of ranks, dependencies, quotas.
void Referee::CheckSharing(const v1::Job& job) {
  const v1::Resources& resources = job.spec().resources();
  const int64_t all = resources.nodes() * resources.ranks_per_node(), ranks = known_[job.id()].ranks;
  const bool shrunk = job.spec().restart().has_elastic() && job.attempt() > 1 &&
                      ranks >= job.spec().restart().elastic().min_ranks() && ranks < all;
  if (ranks != all && !shrunk)
    world_->ReportViolation(absl::StrCat("job ", job.id(), ": launched with ", ranks, " of ", all, " ranks"));
  if (!all_written_) return;
  for (const v1::Job::After& after : job.after()) {
    const auto other = known_.find(after.job());
    if (other == known_.end() || other->second.state != v1::JOB_STATE_SUCCEEDED)
      world_->ReportViolation(
          absl::StrCat("job ", job.id(), ": launched before ", after.job(), " succeeded"));
  }
  const auto quota = quotas_.find(job.project());
  if (quota == quotas_.end()) return;
  int64_t taken = 0;
  for (const auto& [id, known] : known_) {
    const bool has_ranks = known.state == v1::JOB_STATE_STARTING || known.state == v1::JOB_STATE_RUNNING ||
                           known.state == v1::JOB_STATE_STOPPING || known.state == v1::JOB_STATE_CANCELLING ||
                           known.state == v1::JOB_STATE_PAUSING;
    // Ranks on a lost node do not occupy slots.
    const bool lost = std::any_of(known.nodes.begin(), known.nodes.end(),
                                  [this](const std::string& node) { return Silent(node); });
    if (has_ranks && !lost && known.project == job.project()) taken += known.ranks;
  }
  if (taken > quota->second)
    world_->ReportViolation(absl::StrCat("job ", job.id(), ": launched although project ", job.project(),
                                         " has ", taken, " ranks (quota ", quota->second, ")"));
}

void Referee::Stored(const v1::Job& job, bool sure) {
  counted_ |= sure;
  Copy& copy = copies_[job.id()];
  const std::string bytes = job.SerializeAsString();
  if (sure) {
    copy.known = bytes;
    copy.perhaps.clear();
  } else {
    copy.perhaps.push_back(bytes);
  }
  Know(job);
  accounts_.Stored(job);
  if (job.state() == v1::JOB_STATE_STARTING && job.attempt() > copy.launched) {
    copy.launched = job.attempt();
    CheckLaunch(job);
    CheckSharing(job);
    attempts_.Launched(job, Has(asked_, job.id(), "retry"));
  }
  attempts_.Stored(job);
  if (Ended(job.state()) && sure) CheckEnd(job);
}

void Referee::Deleted(const std::string& id, bool sure) {
  counted_ |= sure;
  Copy& copy = copies_[id];
  if (!sure) return copy.perhaps.push_back(std::nullopt);
  Forget(id);
  if (!Has(asked_, id, "delete"))
    world_->ReportViolation(absl::StrCat("job ", id, ": deleted without a request"));
  copy.known = std::nullopt;
  copy.perhaps.clear();
}

void Referee::CheckLaunch(const v1::Job& job) {
  std::set<std::string>& silent = silent_at_launch_[{job.id(), job.attempt()}];
  for (const auto& [node, slots] : slots_) {
    if (Silent(node)) silent.insert(node);
  }
  if (cancelled_.count(job.id()) != 0)
    world_->ReportViolation(absl::StrCat("job ", job.id(), ": launched after its cancel was acknowledged"));
  if (held_.count(job.id()) != 0)
    world_->ReportViolation(absl::StrCat("job ", job.id(), ": launched after its pause was acknowledged"));
  for (const v1::Job::Placement& placement : job.placements()) {
    if (cordoned_.count(placement.node()) != 0)
      world_->ReportViolation(absl::StrCat("job ", job.id(), ": placed on cordoned node ", placement.node()));
  }
}

// After this report a user may remove the machine, so no rank may be alive on it.
void Referee::ReportedEmpty(const std::string& node) {
  for (const auto& rank : ranks_->Alive()) {
    if (rank->node() == node && !Silent(node))
      world_->ReportViolation(
          absl::StrCat("node ", node, ": reported as empty, but ", ToString(rank->id()), " is alive there"));
  }
}

void Referee::CheckEnd(const v1::Job& job) {
  const std::set<std::string>& unknown = silent_at_launch_[{job.id(), job.attempt()}];
  for (const auto& rank : ranks_->Alive()) {
    // Ranks of an earlier attempt on a returned node end during the later attempt.
    if (rank->id().of.attempt < job.attempt() && unknown.count(rank->node()) != 0) continue;
    if (rank->id().of.job_id == job.id() && !Silent(rank->node()))
      world_->ReportViolation(absl::StrCat("job ", job.id(), ": ended, but ", ToString(rank->id()),
                                           " is alive on ", rank->node()));
  }
  if (job.state() == v1::JOB_STATE_CANCELLED && !Has(asked_, job.id(), "cancel"))
    world_->ReportViolation(absl::StrCat("job ", job.id(), ": cancelled without a request"));
  if (job.state() != v1::JOB_STATE_SUCCEEDED) return;
  int world = 0;
  for (const v1::Job::Placement& placement : job.placements()) world += placement.ranks();
  const int finished = ranks_->Finished({job.id(), job.attempt()});
  if (finished != world)
    world_->ReportViolation(
        absl::StrCat("job ", job.id(), ": succeeded, but only ", finished, " of ", world, " ranks finished"));
}

void Referee::Begun(const RankLife& rank) {
  const RankId id = rank.id();
  // Preflight attempts are numbered per node and may repeat.
  const bool measures = IsPreflight(id.of);
  if (!measures && !begun_.insert({id.of, id.rank}).second)
    world_->ReportViolation(absl::StrCat(ToString(id), ": started twice"));
  if (!measures) attempts_.Begun(id);
  int on_node = 0;
  for (const auto& other : ranks_->Alive()) {
    if (other->node() == rank.node()) ++on_node;
    if (other.get() == &rank) continue;
    if (other->node() == rank.node() && other->device() == rank.device())
      world_->ReportViolation(absl::StrCat("device ", rank.device(), " of ", rank.node(),
                                           ": used by two ranks: ", ToString(id), ", ",
                                           ToString(other->id())));
    if (measures || other->id().of.job_id != id.of.job_id || other->id().of.attempt == id.of.attempt)
      continue;
    const RankLife& older = other->id().of < id.of ? *other : rank;
    const RankLife& newer = other->id().of < id.of ? rank : *other;
    if (silent_at_launch_[newer.id().of].count(older.node()) == 0)
      world_->ReportViolation(absl::StrCat("two attempts alive: ", ToString(older.id()),
                                           " on connected node ", older.node(), ", and ",
                                           ToString(newer.id()), " on node ", newer.node()));
  }
  if (on_node > slots_.at(rank.node()))
    world_->ReportViolation(
        absl::StrCat(rank.node(), ": runs ", on_node, " ranks in ", slots_.at(rank.node()), " slots"));
}

void Referee::AsksFor(const std::string& id, const std::string& what) {
  asked_[id].insert(what);
  if (what == "retry") cancelled_.erase(id);
  if (what == "retry") accounts_.Retried(id);
  if (what == "resume" || what == "retry") held_.erase(id);
}

void Referee::Submitted(const std::string& request_id, const v1::Job& job) {
  const auto [it, first] = requests_.emplace(request_id, job.id());
  if (it->second != job.id())
    world_->ReportViolation(
        absl::StrCat("request ", request_id, ": created two jobs, ", it->second, " and ", job.id()));
  if (first && (copies_.count(job.id()) == 0 || !copies_[job.id()].known.has_value()) && !IsDeleted(job.id()))
    world_->ReportViolation(absl::StrCat("job ", job.id(), ": acknowledged before it was stored"));
}

void Referee::Answered(const std::string& what, const v1::Job& job) {
  // The reply states that a full disk prevented storing; a crash may forget such a cancel.
  if (!job.store_error().empty()) return;
  const v1::JobState state = job.state();
  if (what == "cancel" && !Ended(state) && state != v1::JOB_STATE_CANCELLING)
    world_->ReportViolation(absl::StrCat("job ", job.id(), ": state ", Name(state), " after a cancel"));
  if (what == "cancel" && (state == v1::JOB_STATE_CANCELLING || state == v1::JOB_STATE_CANCELLED))
    cancelled_.insert(job.id());
  if (what == "pause" && (state == v1::JOB_STATE_PAUSING || state == v1::JOB_STATE_PAUSED))
    held_.insert(job.id());
}

std::vector<std::string> Referee::Accepted() const {
  std::vector<std::string> ids;
  for (const auto& [request, id] : requests_) ids.push_back(id);
  return ids;
}

// --- Store -------------------------------------------------------------------------------------------------

void CheckedStore::Report(const v1::Job& job, const absl::Status& stored) {
  if (dead_()) return referee_->Stored(job, /*sure=*/false);
  if (stored.ok()) return referee_->Stored(job, /*sure=*/true);
  if (absl::IsResourceExhausted(stored) || absl::IsUnavailable(stored)) referee_->WriteFailed();
}

absl::StatusOr<Inserted> CheckedStore::Insert(const v1::Job& job) {
  absl::StatusOr<Inserted> inserted = store_->Insert(job);
  if (!inserted.ok() || inserted->created) Report(job, inserted.status());
  return inserted;
}

absl::Status CheckedStore::Update(const v1::Job& job) {
  const absl::Status status = store_->Update(job);
  Report(job, status);
  return status;
}

std::vector<absl::Status> CheckedStore::UpdateAll(const std::vector<const v1::Job*>& jobs) {
  std::vector<absl::Status> results = store_->UpdateAll(jobs);
  for (size_t i = 0; i < jobs.size(); ++i) Report(*jobs[i], results[i]);
  return results;
}

absl::Status CheckedStore::Delete(const std::string& id, const Events& news) {
  const absl::Status status = store_->Delete(id, news);
  if (dead_() || status.ok()) referee_->Deleted(id, !dead_());
  return status;
}

absl::Status CheckedStore::SetCordon(const std::string& node, const v1::Cordon& cordon, const Events& news) {
  const absl::Status status = store_->SetCordon(node, cordon, news);
  if (status.ok() && cordon.drain().empty_unix_nanos() > 0) referee_->ReportedEmpty(node);
  if (status.ok() && !dead_()) referee_->WroteOther();
  return status;
}

absl::Status CheckedStore::UpdateNodes(const v1::ListNodesResponse& changed,
                                       const std::vector<std::string>& gone, const Events& news) {
  const absl::Status status = store_->UpdateNodes(changed, gone, news);
  if (status.ok() && !dead_()) {
    referee_->WroteOther();
    referee_->StoredNodes(changed, gone);
  }
  return status;
}

absl::Status CheckedStore::RemoveCordon(const std::string& node, const Events& news) {
  const absl::Status status = store_->RemoveCordon(node, news);
  if (status.ok() && !dead_()) referee_->WroteOther();
  return status;
}

absl::StatusOr<std::vector<std::string>> CheckedStore::ForgetEnded(const Retention& retention, absl::Time now,
                                                                   int limit) {
  return store_->ForgetEnded(retention, now, limit);
}

}  // namespace fsdpd::sim
