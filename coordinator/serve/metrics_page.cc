#include "coordinator/serve/metrics_page.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

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
void MetricsPage::AddFiles(MetricSamples* samples) {
  std::vector<ReadFiles> files;
  {
    MutexLock lock(&mutex_);
    files = files_;
  }
  for (const ReadFiles& read : files) {
    for (const FileState& file : read()) {
      samples->Add("fsdpd_coordinator_file_stale", file.stale, {{"file", file.flag}});
      if (file.not_after != absl::InfiniteFuture())
        samples->Add("fsdpd_coordinator_certificate_expiry_timestamp_seconds",
                     absl::ToUnixSeconds(file.not_after), {{"file", file.flag}});
    }
  }
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
  std::vector<MetricFamily> families;
  AddProcessMetrics(&families);
  MetricSamples samples(CoordinatorMetrics());
  meters_.AddTo(&samples);
  samples.Add("fsdpd_coordinator_build_info", 1, {{"version", kVersion}});
  AddFiles(&samples);
  samples.Add("fsdpd_revoked_certificates", revoked_ == nullptr ? 0 : revoked_->size());
  samples.Add("fsdpd_audit_lines_lost_total", audit_ == nullptr ? 0 : audit_->lost());
  const std::optional<double> state_bytes = StateBytes();
  MutexLock lock(&mutex_);
  samples.Add("fsdpd_coordinator_leader", lead_.has_value());
  if (lead_.has_value()) {
    samples.Add("fsdpd_coordinator_generation", lead_->generation);
    samples.Add("fsdpd_state_bytes", state_bytes);
    samples.Add("fsdpd_events_total", lead_->events->newest());
    samples.Add("fsdpd_reconciler_queue_length", lead_->reconciler->waiting_events());
    samples.Add("fsdpd_watch_updates_dropped_total", lead_->board->dropped_updates());
    AddJobs(&samples);
    AddNodes(&samples);
    AddCordoned(&samples);
  }
  samples.MoveTo(&families);
  return families;
}

void MetricsPage::AddJobs(MetricSamples* samples) {
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
  for (const auto& [state, count] : jobs) samples->Add("fsdpd_jobs", count, {{"state", ShortName(state)}});
  for (const LedgerShare& share : all_seconds)
    samples->Add("fsdpd_all_jobs_seconds", share.seconds, {{"cause", std::string(share.name)}});
  // Oldest first; the id breaks ties.
  std::sort(launched.begin(), launched.end(), [](const auto& a, const auto& b) {
    return std::pair(a->create_unix_nanos(), a->id()) < std::pair(b->create_unix_nanos(), b->id());
  });
  const size_t unlisted = launched.size() - std::min(launched.size(), kMaxListedJobs);
  launched.resize(launched.size() - unlisted);
  const std::map<std::string, v1::Prediction> predictions = predictions_.Of(launched);
  for (const auto& job : launched) {
    const LabeledSamples add(samples, {{"fsdpd_job", job->id()}});
    AddListed(*job, now, add);
    const auto prediction = predictions.find(job->id());
    if (prediction != predictions.end()) AddPrediction(*job, prediction->second, add);
  }
  samples->Add("fsdpd_unlisted_jobs", unlisted);
}

void MetricsPage::AddListed(const v1::Job& job, absl::Time now, const LabeledSamples& add) {
  for (const LedgerShare& share : SharesOf(LedgerAt(now, job)))
    add("fsdpd_job_seconds", share.seconds, {{"cause", std::string(share.name)}});
  std::map<std::string, int> failures;
  for (const v1::Job::FailedAttempt& attempt : job.failed_attempts()) ++failures[CauseName(attempt.cause())];
  for (const auto& [cause, count] : failures) add("fsdpd_job_failed_attempts", count, {{"cause", cause}});
  if (job.state() != v1::JOB_STATE_RUNNING || job.slowest_ranks().empty()) return;
  const v1::SlowRank& slowest = job.slowest_ranks(0);
  add("fsdpd_job_slowest_rank_score", slowest.score(),
      {{"rank", absl::StrCat(slowest.rank())}, {"fsdpd_node", slowest.node()}});
}

void MetricsPage::AddPrediction(const v1::Job& job, const v1::Prediction& step, const LabeledSamples& add) {
  const double rest = step.step_seconds() - step.compute_seconds() - step.exposed_seconds();
  for (const auto& [part, seconds] : {std::pair("compute", step.compute_seconds()),
                                      std::pair("exposed", step.exposed_seconds()), std::pair("rest", rest)})
    add("fsdpd_job_predicted_step_seconds", std::max(0.0, seconds), {{"part", part}});
  add("fsdpd_job_predicted_mfu_ratio", step.mfu());
  if (job.state() == v1::JOB_STATE_RUNNING && job.last_step().step_seconds() > 0)
    add("fsdpd_job_mfu_ratio", MfuOf(step, job.last_step().step_seconds()));
}

void MetricsPage::AddNodes(MetricSamples* samples) {
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
  for (const auto& [state, count] : states) samples->Add("fsdpd_agents", count, {{"state", state}});
  samples->Add("fsdpd_slots", free_slots, {{"state", "free"}});
  samples->Add("fsdpd_slots", slots - free_slots, {{"state", "held"}});
  samples->Add("fsdpd_agent_heartbeat_age_seconds", absl::ToDoubleSeconds(longest));
}

void MetricsPage::AddCordoned(MetricSamples* samples) {
  const std::map<std::string, v1::Cordon> cordons = lead_->reconciler->cordons().All();
  samples->Add("fsdpd_agents_cordoned", cordons.size());
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
    if (view == views_.end()) continue;
    samples->Add("fsdpd_cordoned_node_waiting_jobs", jobs[view->second.info.device()],
                 {{"fsdpd_node", node}});
  }
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
