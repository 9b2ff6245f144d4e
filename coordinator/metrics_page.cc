#include "coordinator/metrics_page.h"

#include <absl/strings/str_cat.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/version.h"
#include "coordinator/job_ledger.h"
#include "coordinator/job_machine.h"

namespace fsdpd {
namespace {

using prometheus::MetricFamily;

MetricFamily FamilyNamed(const char* name) { return FamilyOf(CoordinatorMetrics(), name); }

MetricFamily Single(const char* name, double value) {
  MetricFamily family = FamilyNamed(name);
  AddSample(&family, {}, value);
  return family;
}

// A job's without its spec and history, which are most of it.
v1::Job::Ledger LedgerAt(absl::Time now, const v1::Job& job) {
  v1::Job bare;
  bare.set_state(job.state());
  bare.set_attempt(job.attempt());
  bare.set_create_unix_nanos(job.create_unix_nanos());
  *bare.mutable_ledger() = job.ledger();
  PassTime(now, &bare);
  return bare.ledger();
}

}  // namespace

absl::Status MetricsPage::Serve(const std::string& listen) {
  FSDPD_CHECK(server_ == nullptr);
  FSDPD_ASSIGN_OR_RETURN(server_, MetricsServer::Start(listen, [this] {
                           return prometheus::TextSerializer().Serialize(Collect());
                         }));
  return absl::OkStatus();
}

void MetricsPage::Show(const Lead& lead) {
  MutexLock lock(&mutex_);
  lead_ = lead;
}

void MetricsPage::Hide() {
  MutexLock lock(&mutex_);
  lead_.reset();
  views_.clear();
}

std::vector<MetricFamily> MetricsPage::Collect() {
  std::vector<MetricFamily> families = meters_.Collect();
  MetricFamily build = FamilyNamed("fsdpd_coordinator_build_info");
  AddSample(&build, {{"version", kVersion}}, 1);
  families.push_back(std::move(build));
  MutexLock lock(&mutex_);
  families.push_back(Single("fsdpd_coordinator_leader", lead_.has_value() ? 1 : 0));
  if (!lead_.has_value()) return families;
  families.push_back(Single("fsdpd_coordinator_generation", static_cast<double>(lead_->generation)));
  families.push_back(
      Single("fsdpd_waiting_events", static_cast<double>(lead_->reconciler->waiting_events())));
  families.push_back(
      Single("fsdpd_watch_updates_dropped_total", static_cast<double>(lead_->board->dropped_updates())));
  AddJobs(&families);
  AddNodes(&families);
  return families;
}

void MetricsPage::AddJobs(std::vector<MetricFamily>* families) {
  std::map<v1::JobState, int> jobs;
  for (const v1::JobState state : LiveJobStates()) jobs[state] = 0;
  std::map<std::string, double> all_seconds;
  std::vector<std::pair<int64_t, const v1::Job*>> launched;  // By their admission.
  const absl::Time now = lead_->reconciler->ledger_date().Now();
  const std::vector<std::shared_ptr<const v1::Job>> live = lead_->board->Live();
  for (const auto& job : live) {
    ++jobs[job->state()];
    for (const LedgerShare& share : SharesOf(LedgerAt(now, *job)))
      all_seconds[std::string(share.name)] += share.seconds;
    if (job->attempt() > 0) launched.emplace_back(job->create_unix_nanos(), job.get());
  }
  for (const LedgerShare& share : SharesOf({})) all_seconds.try_emplace(std::string(share.name), 0);
  MetricFamily states = FamilyNamed("fsdpd_jobs");
  for (const auto& [state, count] : jobs) AddSample(&states, {{"state", ShortName(state)}}, count);
  MetricFamily all = FamilyNamed("fsdpd_all_jobs_seconds");
  for (const auto& [cause, seconds] : all_seconds) AddSample(&all, {{"cause", cause}}, seconds);
  std::sort(launched.begin(), launched.end());
  const size_t listed = std::min(launched.size(), kMaxListedJobs);
  MetricFamily seconds = FamilyNamed("fsdpd_job_seconds");
  MetricFamily slow = FamilyNamed("fsdpd_job_slowest_rank_score");
  for (size_t i = 0; i < listed; ++i) {
    const v1::Job& job = *launched[i].second;
    for (const LedgerShare& share : SharesOf(LedgerAt(now, job)))
      AddSample(&seconds, {{"fsdpd_job", job.id()}, {"cause", std::string(share.name)}}, share.seconds);
    if (job.state() != v1::JOB_STATE_RUNNING || job.slowest_ranks().empty()) continue;
    const v1::SlowRank& slowest = job.slowest_ranks(0);
    AddSample(
        &slow,
        {{"fsdpd_job", job.id()}, {"rank", absl::StrCat(slowest.rank())}, {"fsdpd_node", slowest.node()}},
        slowest.score());
  }
  for (MetricFamily* family : {&states, &all, &seconds, &slow}) families->push_back(std::move(*family));
  families->push_back(Single("fsdpd_unlisted_jobs", static_cast<double>(launched.size() - listed)));
}

void MetricsPage::AddNodes(std::vector<MetricFamily>* families) {
  lead_->nodes->ReadInto(&views_);
  int connected = 0, away = 0, left = 0, slots = 0, free_slots = 0;
  const absl::Time now = clock_->Now();
  absl::Duration longest;
  for (const auto& [name, view] : views_) {
    if (!view.connected) {
      ++(view.left ? left : away);
      continue;
    }
    ++connected;
    slots += view.info.slots();
    free_slots += view.free_slots;
    longest = std::max(longest, now - view.last_seen);
  }
  MetricFamily agents = FamilyNamed("fsdpd_agents");
  for (const auto& [state, count] :
       {std::pair("connected", connected), std::pair("away", away), std::pair("left", left)})
    AddSample(&agents, {{"state", state}}, count);
  MetricFamily places = FamilyNamed("fsdpd_slots");
  AddSample(&places, {{"state", "free"}}, free_slots);
  AddSample(&places, {{"state", "held"}}, slots - free_slots);
  for (MetricFamily* family : {&agents, &places}) families->push_back(std::move(*family));
  families->push_back(Single("fsdpd_agent_heartbeat_age_seconds", absl::ToDoubleSeconds(longest)));
  families->push_back(
      Single("fsdpd_agents_cordoned", static_cast<double>(lead_->reconciler->cordons().All().size())));
}

}  // namespace fsdpd
