#include "client/text/job_text.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "base/spec_text/enum_name.h"
#include "base/text.h"
#include "client/spec/spec_print.h"
#include "client/text/progress_line.h"
#include "client/text/text_table.h"
#include "fsdp/plan/spec/defaults.h"

namespace fsdpd {
namespace {

// "#2 (queue_order) ": the position in the queue, and the short name of the code.
std::string WaitingText(const v1::Job& job) {
  const v1::Job::Waiting& waiting = job.waiting();
  if (job.state() != v1::JOB_STATE_QUEUED || waiting.code() == v1::Job::Waiting::CODE_UNSPECIFIED) return "";
  const std::string place =
      waiting.queue_position() > 0 ? absl::StrCat("#", waiting.queue_position(), " ") : "";
  return absl::StrCat(place, "(", ShortEnumName(waiting.code()), ") ");
}

// Limits a reason with several lines, and adds the number of omitted lines.
std::string Shortened(const std::string& text, const std::string& job_id) {
  constexpr size_t kLines = 6;
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (lines.size() <= kLines) return text;
  const size_t left_out = lines.size() - (kLines - 1);
  lines.resize(kLines - 1);
  return absl::StrCat(absl::StrJoin(lines, "\n"), "\n  and ", left_out, " more: fsdpctl describe ", job_id);
}

const std::vector<std::string> kWideHead = {"ATTEMPT", "VALIDATION", "TOKENS/S", "PEAK",
                                            "NODES",   "SLOWEST",    "SUBMITTER"};

std::vector<std::string> WideCells(const v1::Job& job) {
  const bool stepped = job.has_last_step();
  const std::string nodes =
      absl::StrJoin(job.placements(), ",",
                    [](std::string* out, const v1::Job::Placement& place) { *out += OneLine(place.node()); });
  const Progress last = ProgressOf(job.last_step(), TotalSteps(job), 0);
  return {absl::StrCat(job.attempt()),
          job.has_last_validation() ? absl::StrFormat("%.4f", job.last_validation().loss()) : "-",
          stepped ? HumanCount(last.tokens_per_second) : "-",
          job.peak_bytes() > 0 ? HumanBytes(job.peak_bytes()) : "-",
          OrDash(nodes),
          SlowestText(job),
          OrDash(OneLine(job.submitter()))};
}

}  // namespace

std::string OrDash(std::string text) { return text.empty() ? "-" : text; }

std::string AgeText(int64_t unix_nanos, absl::Time now) {
  if (unix_nanos == 0) return "-";
  const double seconds = absl::ToDoubleSeconds(now - absl::FromUnixNanos(unix_nanos));
  return HumanSeconds(std::max(0.0, std::floor(seconds)));
}

std::string TimeText(int64_t unix_nanos, absl::Time now) {
  if (unix_nanos == 0) return "-";
  const absl::Time time = absl::FromUnixNanos(unix_nanos);
  return absl::StrCat(absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone()), " (",
                      AgeText(unix_nanos, now), " ago)");
}

v1::JobSpec ResolvedSpecOf(const v1::Job& job) {
  return job.has_resolved() ? job.resolved() : WithDefaults(job.spec(), nullptr);
}

v1::JobSpec WithShortPackage(v1::JobSpec spec) {
  if (!spec.model().has_package()) return spec;
  v1::Package package;
  package.set_path(spec.model().package().path());
  *spec.mutable_model()->mutable_package() = std::move(package);
  return spec;
}

std::string PackageText(const v1::Model& model) {
  constexpr size_t kDigestDigits = 12;
  if (!model.has_package()) return "";
  if (model.package().digest().empty()) return "not read yet";
  double params = 0;
  for (const v1::Package::Unit& unit : model.package().units()) {
    if (unit.graph() < 0 || unit.graph() >= model.package().graphs_size()) continue;
    for (const v1::Package::Param& param : model.package().graphs(static_cast<int>(unit.graph())).params())
      params += std::accumulate(param.shape().begin(), param.shape().end(), 1.0, std::multiplies<>());
  }
  return absl::StrCat("digest ", model.package().digest().substr(0, kDigestDigits), ", ",
                      model.package().units_size(), " units, ", HumanCount(params), " parameters");
}

const v1::StepReport* NewestStep(const v1::Job& job) {
  if (job.has_last_step()) return &job.last_step();
  return job.has_previous_last_step() ? &job.previous_last_step() : nullptr;
}

std::string FailedCheckpointText(const v1::SavedCheckpoint& failed) {
  return absl::StrCat("checkpoint of step ", failed.step(),
                      " could not be written: ", OneLine(failed.error()));
}

std::string ReasonText(const v1::Job& job, absl::Time now) {
  if (job.stalled_since_unix_nanos() == 0) {
    const bool save_failed = job.state() == v1::JOB_STATE_RUNNING && job.has_failed_checkpoint();
    return save_failed ? FailedCheckpointText(job.failed_checkpoint())
                       : absl::StrCat(WaitingText(job), ManyLines(job.reason()));
  }
  const std::string quiet = absl::StrCat("no step for ", AgeText(job.stalled_since_unix_nanos(), now));
  if (!job.has_last_step()) return quiet;
  return absl::StrCat(quiet, "; the last one took ", HumanSeconds(job.last_step().step_seconds()));
}

std::string LabelText(const google::protobuf::RepeatedPtrField<v1::Label>& labels, const char* between) {
  return absl::StrJoin(labels, between, [](std::string* out, const v1::Label& label) {
    absl::StrAppend(out, label.key(), "=", label.value());
  });
}

std::string RanksText(const v1::Job& job, const char* of) {
  if (!job.has_shrunk()) return absl::StrCat(WorldSizeOf(job));
  const v1::Resources& all = job.shrunk().resolved().resources();
  return absl::StrCat(WorldSizeOf(job), of, all.nodes() * all.ranks_per_node());
}

int64_t StepOf(const v1::Job& job) {
  if (job.has_last_step()) return job.last_step().step();
  // The coordinator removes checkpoints that an attempt could not use from the list.
  const int64_t saved = job.checkpoints().empty() ? 0 : job.checkpoints().rbegin()->step();
  return std::max(saved, job.restored().step());
}

std::string EpochText(const v1::Job& job) {
  if (job.epoch_samples() < 1) return "";
  const auto samples = static_cast<double>(StepOf(job) * ResolvedSpecOf(job).train().global_batch());
  const std::string epoch = absl::StrFormat("%.2f", samples / static_cast<double>(job.epoch_samples()));
  return job.spec().train().has_epochs() ? absl::StrCat(epoch, "/", job.spec().train().epochs()) : epoch;
}

std::string ValidationText(const v1::Job& job) {
  if (!job.has_last_validation()) return "";
  const v1::Job::Validation &last = job.last_validation(), &best = job.best_validation();
  const std::string text = absl::StrFormat("%.4f after step %d", last.loss(), last.step());
  if (!job.has_best_validation() || best.step() == last.step()) return text;
  return absl::StrFormat("%s, best %.4f after step %d", text, best.loss(), best.step());
}

int64_t TotalSteps(const v1::Job& job) {
  return job.spec().train().has_epochs() ? job.resolved().train().steps() : job.spec().train().steps();
}

std::string StepText(const v1::Job& job) {
  const int64_t total = TotalSteps(job);
  return absl::StrCat(StepOf(job), "/", total > 0 ? absl::StrCat(total) : "?");
}

bool IsEnded(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

std::string StateName(v1::JobState state) {
  return v1::JobState_IsValid(state) && state != v1::JOB_STATE_UNSPECIFIED ? ShortEnumName(state) : "unknown";
}

int64_t WorldSizeOf(const v1::Job& job) {
  const v1::JobSpec filled = ResolvedSpecOf(job);
  return filled.resources().nodes() * filled.resources().ranks_per_node();
}

std::string SlowestText(const v1::Job& job) {
  constexpr double kNotable = 1.05;  // As on the dashboard. Smaller differences are normal between devices.
  if (job.state() != v1::JOB_STATE_RUNNING || job.slowest_ranks().empty()) return "-";
  const v1::SlowRank& slowest = job.slowest_ranks(0);
  if (slowest.score() < kNotable) return "-";
  return absl::StrFormat("%d on %s, %.2fx", slowest.rank(), OneLine(slowest.node()), slowest.score());
}

std::string JobTable(const std::vector<v1::Job>& jobs, absl::Time now, int width, JobColumns columns) {
  return absl::StrJoin(JobRows(jobs, now, width, columns), "");
}

std::vector<std::string> JobRows(const std::vector<v1::Job>& jobs, absl::Time now, int width,
                                 JobColumns columns) {
  const bool wide = columns == JobColumns::kWide;
  // The column is omitted in clusters without projects.
  const bool projects =
      std::any_of(jobs.begin(), jobs.end(), [](const v1::Job& job) { return !job.project().empty(); });
  std::vector<std::string> head = {"ID", "STATE", "STEP", "LOSS", "RANKS", "AGE", "REASON"};
  if (projects) head.insert(head.begin() + 1, "PROJECT");
  if (wide) head.insert(head.end() - 1, kWideHead.begin(), kWideHead.end());
  if (columns != JobColumns::kDefault) head.insert(head.end() - 1, "LABELS");
  TextTable table(head);
  for (const v1::Job& job : jobs) {
    const v1::StepReport* newest = NewestStep(job);
    const bool at_newest = newest != nullptr && newest->step() == StepOf(job);
    std::vector<std::string> row = {job.id(),
                                    StateName(job.state()),
                                    StepText(job),
                                    at_newest ? absl::StrFormat("%.4f", newest->loss()) : "-",
                                    RanksText(job, "/"),
                                    AgeText(job.create_unix_nanos(), now),
                                    Shortened(ReasonText(job, now), job.id())};
    if (projects) row.insert(row.begin() + 1, OrDash(job.project()));
    const std::vector<std::string> more = wide ? WideCells(job) : std::vector<std::string>();
    row.insert(row.end() - 1, more.begin(), more.end());
    if (columns != JobColumns::kDefault)
      row.insert(row.end() - 1, OrDash(OneLine(LabelText(job.labels(), ","))));
    table.Add(row);
  }
  return table.Rows(0, width);
}

}  // namespace fsdpd
