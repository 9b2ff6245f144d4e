#include "coordinator/serve/metrics_page.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/process/process_metrics.h"
#include "base/version.h"
#include "coordinator/job/job_ledger.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/nodes/known_node.h"
#include "coordinator/store/event_log.h"

namespace fsdpd {
namespace {

using prometheus::MetricFamily;

MetricFamily FamilyNamed(const char* name) { return FamilyOf(CoordinatorMetrics(), name); }

MetricFamily Single(const char* name, double value) {
  MetricFamily family = FamilyNamed(name);
  AddSample(&family, {}, value);
  return family;
}

std::string CauseName(v1::FailureCause cause) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::FailureCause_Name(cause), "FAILURE_CAUSE_"));
}

// Size of the database, including its write-ahead log.
double BytesOf(const std::string& state_dir) {
  uintmax_t bytes = 0;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(state_dir, error)) {
    std::error_code removed;
    if (const uintmax_t size = file.file_size(removed); !removed) bytes += size;
  }
  return static_cast<double>(bytes);
}

// Ledger of a job up to `now`. Copies only the fields that AdvanceLedger reads, since spec and history are
// large.
v1::Job::Ledger LedgerAt(absl::Time now, const v1::Job& job) {
  v1::Job bare;
  bare.set_state(job.state());
  bare.set_attempt(job.attempt());
  bare.set_create_unix_nanos(job.create_unix_nanos());
  *bare.mutable_ledger() = job.ledger();
  AdvanceLedger(now, &bare);
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

void MetricsPage::ExportFiles(ReadFiles read) {
  MutexLock lock(&mutex_);
  files_.push_back(std::move(read));
}

// Reads the files without mutex_, since a disk may be slow.
void MetricsPage::AddFiles(std::vector<MetricFamily>* families) {
  std::vector<ReadFiles> files;
  {
    MutexLock lock(&mutex_);
    files = files_;
  }
  MetricFamily stale = FamilyNamed("fsdpd_coordinator_file_stale");
  MetricFamily expiry = FamilyNamed("fsdpd_coordinator_certificate_expiry_timestamp_seconds");
  for (const ReadFiles& read : files) {
    for (const FileState& file : read()) {
      AddSample(&stale, {{"file", file.flag}}, file.stale ? 1 : 0);
      if (file.not_after != absl::InfiniteFuture())
        AddSample(&expiry, {{"file", file.flag}}, static_cast<double>(absl::ToUnixSeconds(file.not_after)));
    }
  }
  for (MetricFamily* family : {&stale, &expiry}) families->push_back(std::move(*family));
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

// Reads the directory without mutex_, since a disk may be slow.
std::optional<double> MetricsPage::StateBytes() {
  std::string state_dir;
  {
    MutexLock lock(&mutex_);
    if (lead_.has_value()) state_dir = lead_->state_dir;
  }
  return state_dir.empty() ? std::nullopt : std::optional(BytesOf(state_dir));
}

std::vector<MetricFamily> MetricsPage::Collect() {
  std::vector<MetricFamily> families = meters_.Collect();
  MetricFamily build = FamilyNamed("fsdpd_coordinator_build_info");
  AddSample(&build, {{"version", kVersion}}, 1);
  families.push_back(std::move(build));
  AddProcessMetrics(&families);
  AddFiles(&families);
  const size_t revoked = revoked_ == nullptr ? 0 : revoked_->size();
  families.push_back(Single("fsdpd_revoked_certificates", static_cast<double>(revoked)));
  const int64_t audit_lost = audit_ == nullptr ? 0 : audit_->lost();
  families.push_back(Single("fsdpd_audit_lines_lost_total", static_cast<double>(audit_lost)));
  const std::optional<double> state_bytes = StateBytes();
  MutexLock lock(&mutex_);
  families.push_back(Single("fsdpd_coordinator_leader", lead_.has_value() ? 1 : 0));
  if (!lead_.has_value()) return families;
  families.push_back(Single("fsdpd_coordinator_generation", static_cast<double>(lead_->generation)));
  if (state_bytes.has_value()) families.push_back(Single("fsdpd_state_bytes", *state_bytes));
  families.push_back(Single("fsdpd_events_total", static_cast<double>(lead_->events->newest())));
  families.push_back(
      Single("fsdpd_reconciler_queue_length", static_cast<double>(lead_->reconciler->waiting_events())));
  families.push_back(
      Single("fsdpd_watch_updates_dropped_total", static_cast<double>(lead_->board->dropped_updates())));
  AddJobs(&families);
  AddNodes(&families);
  AddCordoned(&families);
  return families;
}

void MetricsPage::AddJobs(std::vector<MetricFamily>* families) {
  std::map<v1::JobState, int> jobs;
  for (const v1::JobState state : LiveJobStates()) jobs[state] = 0;
  std::vector<LedgerShare> all_seconds = SharesOf({});
  JobPredictions::Jobs launched;
  const absl::Time now = lead_->reconciler->ledger_date().Now();
  const std::vector<std::shared_ptr<const v1::Job>> live = lead_->board->Live();
  for (const auto& job : live) {
    ++jobs[job->state()];
    const std::vector<LedgerShare> shares = SharesOf(LedgerAt(now, *job));
    for (size_t i = 0; i < shares.size(); ++i) all_seconds[i].seconds += shares[i].seconds;
    if (job->attempt() > 0) launched.push_back(job);
  }
  MetricFamily states = FamilyNamed("fsdpd_jobs");
  for (const auto& [state, count] : jobs) AddSample(&states, {{"state", ShortName(state)}}, count);
  MetricFamily all = FamilyNamed("fsdpd_all_jobs_seconds");
  for (const LedgerShare& share : all_seconds)
    AddSample(&all, {{"cause", std::string(share.name)}}, share.seconds);
  for (MetricFamily* family : {&states, &all}) families->push_back(std::move(*family));
  // Oldest first; the id breaks ties.
  std::sort(launched.begin(), launched.end(), [](const auto& a, const auto& b) {
    return std::pair(a->create_unix_nanos(), a->id()) < std::pair(b->create_unix_nanos(), b->id());
  });
  const size_t unlisted = launched.size() - std::min(launched.size(), kMaxListedJobs);
  launched.resize(launched.size() - unlisted);
  AddListed(launched, families);
  AddPredictions(launched, families);
  families->push_back(Single("fsdpd_unlisted_jobs", static_cast<double>(unlisted)));
}

void MetricsPage::AddListed(const JobPredictions::Jobs& jobs, std::vector<MetricFamily>* families) {
  const absl::Time now = lead_->reconciler->ledger_date().Now();
  MetricFamily seconds = FamilyNamed("fsdpd_job_seconds");
  MetricFamily slow = FamilyNamed("fsdpd_job_slowest_rank_score");
  MetricFamily failed = FamilyNamed("fsdpd_job_failed_attempts");
  for (const auto& job : jobs) {
    for (const LedgerShare& share : SharesOf(LedgerAt(now, *job)))
      AddSample(&seconds, {{"fsdpd_job", job->id()}, {"cause", std::string(share.name)}}, share.seconds);
    std::map<std::string, int> failures;
    for (const v1::Job::FailedAttempt& attempt : job->failed_attempts())
      ++failures[CauseName(attempt.cause())];
    for (const auto& [cause, count] : failures)
      AddSample(&failed, {{"fsdpd_job", job->id()}, {"cause", cause}}, count);
    if (job->state() != v1::JOB_STATE_RUNNING || job->slowest_ranks().empty()) continue;
    const v1::SlowRank& slowest = job->slowest_ranks(0);
    AddSample(
        &slow,
        {{"fsdpd_job", job->id()}, {"rank", absl::StrCat(slowest.rank())}, {"fsdpd_node", slowest.node()}},
        slowest.score());
  }
  for (MetricFamily* family : {&seconds, &slow, &failed}) families->push_back(std::move(*family));
}

void MetricsPage::AddPredictions(const JobPredictions::Jobs& jobs, std::vector<MetricFamily>* families) {
  const std::map<std::string, v1::Prediction> predictions = predictions_.Of(jobs);
  MetricFamily steps = FamilyNamed("fsdpd_job_predicted_step_seconds");
  MetricFamily predicted = FamilyNamed("fsdpd_job_predicted_mfu_ratio");
  MetricFamily reached = FamilyNamed("fsdpd_job_mfu_ratio");
  for (const auto& job : jobs) {
    const auto found = predictions.find(job->id());
    if (found == predictions.end()) continue;
    const v1::Prediction& step = found->second;
    const double rest = step.step_seconds() - step.compute_seconds() - step.exposed_seconds();
    for (const auto& [part, seconds] :
         {std::pair("compute", step.compute_seconds()), std::pair("exposed", step.exposed_seconds()),
          std::pair("rest", rest)})
      AddSample(&steps, {{"fsdpd_job", job->id()}, {"part", part}}, std::max(0.0, seconds));
    AddSample(&predicted, {{"fsdpd_job", job->id()}}, step.mfu());
    if (job->state() == v1::JOB_STATE_RUNNING && job->last_step().step_seconds() > 0)
      AddSample(&reached, {{"fsdpd_job", job->id()}}, MfuOf(step, job->last_step().step_seconds()));
  }
  for (MetricFamily* family : {&steps, &predicted, &reached}) families->push_back(std::move(*family));
}

void MetricsPage::AddNodes(std::vector<MetricFamily>* families) {
  lead_->nodes->ReadInto(&views_);
  std::map<std::string, int> states = {{"ready", 0}, {"not-ready", 0}, {"lost", 0}, {"left", 0}};
  int slots = 0, free_slots = 0;
  const absl::Time now = clock_->Now();
  absl::Duration longest;
  for (const auto& [name, view] : views_) {
    ++states[StateOf(view)];
    if (!view.connected) continue;
    slots += view.info.slots();
    free_slots += view.free_slots;
    longest = std::max(longest, now - view.last_seen);
  }
  MetricFamily agents = FamilyNamed("fsdpd_agents");
  for (const auto& [state, count] : states) AddSample(&agents, {{"state", state}}, count);
  MetricFamily places = FamilyNamed("fsdpd_slots");
  AddSample(&places, {{"state", "free"}}, free_slots);
  AddSample(&places, {{"state", "held"}}, slots - free_slots);
  for (MetricFamily* family : {&agents, &places}) families->push_back(std::move(*family));
  families->push_back(Single("fsdpd_agent_heartbeat_age_seconds", absl::ToDoubleSeconds(longest)));
}

void MetricsPage::AddCordoned(std::vector<MetricFamily>* families) {
  const std::map<std::string, v1::Cordon> cordons = lead_->reconciler->cordons().All();
  families->push_back(Single("fsdpd_agents_cordoned", static_cast<double>(cordons.size())));
  MetricFamily waiting = FamilyNamed("fsdpd_cordoned_node_waiting_jobs");
  std::map<v1::Device, int> jobs;
  for (const auto& job : cordons.empty() ? JobPredictions::Jobs() : lead_->board->Live()) {
    v1::Job bare;
    bare.set_id(job->id());
    bare.set_state(job->state());
    lead_->board->AddWaiting(&bare);
    const v1::JobSpec& spec = job->has_resolved() ? job->resolved() : job->spec();
    if (bare.waiting().code() == v1::Job::Waiting::CODE_CORDONED) ++jobs[spec.resources().device()];
  }
  for (const auto& [node, cordon] : cordons) {
    const auto view = views_.find(node);
    if (view != views_.end()) AddSample(&waiting, {{"fsdpd_node", node}}, jobs[view->second.info.device()]);
  }
  families->push_back(std::move(waiting));
}

std::vector<MetricsPage::FileState> TlsFileStates(const TlsFiles& flags, const TlsFiles& files,
                                                  const std::string& error, absl::Time not_after,
                                                  absl::Time trusted_not_after) {
  std::vector<MetricsPage::FileState> states;
  const auto add = [&](const std::string& flag, const std::string& path, absl::Time expiry) {
    if (!path.empty()) states.push_back({flag, IsErrorOfFile(path, error), expiry});
  };
  add(flags.trusted, files.trusted, trusted_not_after);
  add(flags.certificate, files.certificate, not_after);
  add(flags.key, files.key, absl::InfiniteFuture());
  return states;
}

}  // namespace fsdpd
