#include "client/text/job_description.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/spec_text/enum_name.h"
#include "base/text.h"
#include "client/spec/named_checkpoint.h"
#include "client/spec/spec_print.h"
#include "client/text/job_text.h"
#include "client/text/plan_text.h"
#include "client/text/text_table.h"

namespace fsdpd {
namespace {

// "5.6021 -> 2.4410". " (at step 75)" is added if an attempt got further than the step from which the job
// resumes.
std::string LossText(const v1::Job& job, const v1::StepReport& newest) {
  std::string text = absl::StrFormat("%.4f", newest.loss());
  if (job.first_loss() != 0) text = absl::StrCat(absl::StrFormat("%.4f -> ", job.first_loss()), text);
  if (newest.step() != StepOf(job)) absl::StrAppend(&text, " (at step ", newest.step(), ")");
  return text;
}

// "1.50 GiB in 3 s"
std::string CostText(const v1::SavedCheckpoint& saved) {
  return absl::StrCat(HumanBytes(saved.bytes()), " in ", HumanSeconds(saved.seconds()));
}

std::string ExportText(const v1::SavedCheckpoint& exported) {
  const std::string path = OneLine(exported.path());
  if (exported.error().empty()) return absl::StrCat("exported: ", path, " (", CostText(exported), ")");
  return absl::StrCat("not exported: ", path, ": ", OneLine(exported.error()));
}

// Whether size and times are known. They are not for a checkpoint that is listed only because an attempt
// resumed from it.
bool HasDetails(const v1::SavedCheckpoint& saved) { return saved.bytes() > 0; }

// The first line of a text whose other lines are printed elsewhere.
std::string FirstLine(const std::string& text) {
  const size_t end = text.find('\n');
  return end == std::string::npos ? text : absl::StrCat(text.substr(0, end), " ...");
}

// "no_progress"; "" if an older coordinator did not store the cause.
std::string CauseName(v1::FailureCause cause) {
  const bool known = v1::FailureCause_IsValid(cause) && cause != v1::FAILURE_CAUSE_UNSPECIFIED;
  return known ? ShortEnumName(cause) : "";
}

// "61.2 MiB measured, 63.0 MiB planned (-3%)"
std::string PeakText(const v1::Job& job) {
  const int64_t measured = job.peak_bytes(), planned = job.memory_plan().peak_bytes();
  if (measured == 0) return absl::StrCat(HumanBytes(planned), " planned");
  std::string text = absl::StrCat(HumanBytes(measured), " measured");
  if (planned == 0) return text;
  if (ResolvedSpecOf(job).parallel().pipeline() >
      1)  // Rank 0 is measured; the plan is that of the fullest stage.
    return absl::StrCat(text, " on the first stage, ", HumanBytes(planned), " planned on the fullest");
  const double drift = 100.0 * (static_cast<double>(measured) / static_cast<double>(planned) - 1);
  return absl::StrCat(text, ", ", HumanBytes(planned), " planned (", absl::StrFormat("%+.0f%%", drift), ")");
}

// Whether the attempt ended without a failure: its node was drained, or a newer attempt exists.
bool EndedWell(const v1::Job::Failure& failure) {
  return failure.drained() || (failure.newer_attempt() > 0 && !failure.refused());
}

// "rank 3 on node-1 was killed by signal 9 (Killed): out of memory"
std::string CauseText(const v1::Job::Failure& failure) {
  if (failure.newer_attempt() > 0 && !failure.refused()) return OneLine(failure.error());  // Nothing failed.
  std::string text = failure.rank() >= 0 ? absl::StrCat("rank ", failure.rank()) : "the job";
  if (!failure.node().empty()) absl::StrAppend(&text, " on ", failure.node());
  if (failure.has_hang()) return absl::StrCat(text, " hangs: ", OneLine(failure.error()));
  // For a rank without an error message, the coordinator stores how it ended and where it was blocked.
  if (absl::StartsWith(failure.error(), "killed by signal "))
    return absl::StrCat(text, " was ", OneLine(failure.error()));
  if (absl::StartsWith(failure.error(), "exited with code "))
    return absl::StrCat(text, " ", OneLine(failure.error()));
  if (failure.signal() != 0) {
    absl::StrAppend(&text, " was killed by signal ", failure.signal(), " (", strsignal(failure.signal()),
                    ")");
  } else if (failure.rank() >= 0 && failure.exit_code() != 0) {
    absl::StrAppend(&text, " ended with exit code ", failure.exit_code());
  } else {
    text += " failed";
  }
  if (!failure.error().empty())
    absl::StrAppend(&text, ": ", absl::StrReplaceAll(ManyLines(failure.error()), {{"\n", "\n  "}}));
  return text;
}

// "0-2,5". REQUIRES: `numbers` are ascending.
std::string RangesText(const google::protobuf::RepeatedField<int32_t>& numbers) {
  std::string text;
  for (int i = 0; i < numbers.size();) {
    int last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ",", numbers[i]);
    if (last > i) absl::StrAppend(&text, "-", numbers[last]);
    i = last + 1;
  }
  return text;
}

std::string PositionTable(const google::protobuf::RepeatedPtrField<v1::Job::Position>& stands) {
  TextTable table({"RANKS", "BLOCKED IN"});
  for (const v1::Job::Position& stand : stands)
    table.Add({RangesText(stand.ranks()), OneLine(stand.position())});
  return table.Render(2);
}

std::string HangText(const std::string& id, const v1::Job::Failure& failure) {
  std::string text = PositionTable(failure.hang().positions());
  if (!failure.hang().evidence().empty())
    absl::StrAppend(&text, "  threads: ", OneLine(failure.hang().evidence()), " on ", failure.node(),
                    " (fsdpctl logs ", id, " --evidence --rank ", failure.rank(), " --attempt ",
                    failure.attempt(), ")\n");
  return text;
}

// Whether the failure is still relevant: no later attempt has recovered from it, and the job was not paused
// or cancelled.
bool IsCurrentFailure(const v1::Job& job) {
  if (job.state() == v1::JOB_STATE_FAILED) return true;
  const bool waits = job.state() == v1::JOB_STATE_STOPPING || job.state() == v1::JOB_STATE_QUEUED ||
                     job.state() == v1::JOB_STATE_PREFLIGHT;
  return waits && job.failure().attempt() == job.attempt();
}

std::string FailureText(const v1::Job& job) {
  const v1::Job::Failure& failure = job.failure();
  std::string text = absl::StrCat("  ", CauseText(failure), "\n");
  if (failure.has_hang()) text += HangText(job.id(), failure);
  if (failure.log_tail().empty()) return text;
  const std::string logs =
      absl::StrCat("fsdpctl logs ", job.id(), " --rank ", failure.rank(), " --attempt ", failure.attempt());
  if (!IsCurrentFailure(job)) return absl::StrCat(text, "  log: ", logs, "\n");
  absl::StrAppend(&text, "  end of the log (complete: ", logs, "):\n");
  for (const std::string& line : failure.log_tail()) absl::StrAppend(&text, "  | ", OneLine(line), "\n");
  return text;
}

// Table of failed attempts, if there are several. FailureText() prints the details of the last one.
std::string FailedAttemptText(const v1::Job& job) {
  if (job.failed_attempts_size() < 2) return "";
  TextTable table({"ATTEMPT", "CAUSE", "NODE", "STEP"});
  for (const v1::Job::FailedAttempt& each : job.failed_attempts()) {
    table.Add({absl::StrCat(each.attempt()), OrDash(CauseName(each.cause())), OrDash(each.node()),
               absl::StrCat(each.step())});
  }
  return absl::StrCat("failed attempts:\n", table.Render(2));
}

std::string StalledRanksText(const v1::Job& job) {
  return absl::StrCat("positions of stalled ranks:\n", PositionTable(job.positions()));
}

std::string SlowRankText(const v1::Job& job) {
  TextTable table({"RANK", "NODE", "COMPUTE", "VS OTHERS"});
  for (const v1::SlowRank& slow : job.slowest_ranks()) {
    table.Add({absl::StrCat(slow.rank()), OneLine(slow.node()),
               absl::StrCat(HumanSeconds(slow.seconds()), " per step"),
               absl::StrFormat("%.2fx", slow.score())});
  }
  return absl::StrCat("slowest ranks:\n", table.Render(2));
}

std::string PlacementText(const v1::Job& job) {
  TextTable table({"NODE", "RANKS", "DEVICES"});
  for (const v1::Job::Placement& p : job.placements()) {
    table.Add({p.node(), absl::StrCat(p.first_rank(), "-", p.first_rank() + p.ranks() - 1),
               absl::StrJoin(p.devices(), ",")});
  }
  return absl::StrCat("placement:\n", table.Render(2));
}

std::string MemoryText(const v1::Job& job) {
  TextTable table({"COMPONENT", "PLANNED", "NOTE"});
  for (const auto& c : job.memory_plan().components()) table.Add({c.name(), HumanBytes(c.bytes()), c.note()});
  const int64_t host = job.memory_plan().host_bytes();
  if (host > 0) table.Add({"host", HumanBytes(host), HostMemoryNote(job.spec())});
  return absl::StrCat("memory per rank: ", PeakText(job),
                      job.plan_provisional() ? "; replanned once enough nodes are ready" : "", "\n",
                      table.Render(2));
}

std::string LoraText(const v1::Lora& lora) {
  const std::string base = lora.base_model().empty() ? "" : absl::StrCat(" of ", OneLine(lora.base_model()));
  const char* const nf4 = lora.base_type() == v1::BASE_TYPE_NF4 ? ", frozen weights in nf4" : "";
  return absl::StrCat("adapters of rank ", lora.rank(), base, nf4);
}

// Newest first.
std::string CheckpointText(const v1::Job& job, absl::Time now) {
  constexpr int kShown = 5;
  std::string text;
  if (job.has_restored()) {
    const v1::RestoredCheckpoint& restored = job.restored();
    const std::string what = restored.step() > 0 ? absl::StrCat("after step ", restored.step())
                                                 : "at step 1, with only the parameters";
    absl::StrAppend(&text, "attempt ", job.attempt(), " started ", what, ", from ", OneLine(restored.path()),
                    " (read in ", HumanSeconds(restored.seconds()), ")\n");
    for (const std::string& passed : restored.skipped_checkpoints())
      absl::StrAppend(&text, "  skipped checkpoint: ", OneLine(passed), "\n");
    for (const std::string& note : restored.notes()) absl::StrAppend(&text, "  note: ", OneLine(note), "\n");
  }
  if (job.has_exported()) absl::StrAppend(&text, ExportText(job.exported()), "\n");
  if (!job.has_failed_checkpoint() && job.checkpoints().empty()) return text;
  text += "checkpoints:\n";
  if (job.has_failed_checkpoint()) {
    absl::StrAppend(&text, "  ", FailedCheckpointText(job.failed_checkpoint()), " (",
                    AgeText(job.failed_checkpoint().unix_nanos(), now), " ago)\n");
  }
  if (job.checkpoints().empty()) return text;
  TextTable table({"STEP", "AGE", "BYTES", "TOOK", "WAITED", "PATH"});
  const int known = job.checkpoints_size(), shown = std::min(known, kShown);
  for (int i = known - 1; i >= known - shown; --i) {
    const v1::SavedCheckpoint& saved = job.checkpoints(i);
    const bool known_details = HasDetails(saved);
    table.Add({absl::StrCat(saved.step()), AgeText(saved.unix_nanos(), now),
               known_details ? HumanBytes(saved.bytes()) : "-",
               known_details ? HumanSeconds(saved.seconds()) : "-",
               known_details ? HumanSeconds(saved.stall_seconds()) : "-",
               IsRetained(job, i) ? OneLine(saved.path()) : std::string("removed (checkpoint.keep_last)")});
  }
  text += table.Render(2);
  int removed = 0;
  for (int i = 0; i < known - shown; ++i) removed += IsRetained(job, i) ? 0 : 1;
  if (known > shown)
    absl::StrAppend(&text, "  and ", known - shown, " older",
                    removed > 0 ? absl::StrCat(", ", removed, " of them removed") : "", "\n");
  return text;
}

// Newest first.
std::string BadStepText(const v1::Job& job) {
  constexpr int kShown = 5;
  if (job.bad_steps().empty()) return "";
  // A step that was skipped in several attempts is counted once per attempt.
  const std::string in = job.attempt() > 1 ? absl::StrCat(" in ", job.attempt(), " attempts") : "";
  std::string text =
      absl::StrCat("bad steps: ", job.skipped_steps(), " skipped", in, ", ", job.rewinds(), " rewound\n");
  TextTable table({"STEP", "WHY", "LOSS", "NORM", "ABOVE", "SAMPLES"});
  const int known = job.bad_steps_size(), shown = std::min(known, kShown);
  for (int i = known - 1; i >= known - shown; --i) {
    const v1::BadStep& bad = job.bad_steps(i);
    const bool spike = bad.kind() == v1::BAD_STEP_KIND_SPIKE;
    table.Add({absl::StrCat(bad.step()), spike ? "spike" : "not finite", absl::StrFormat("%.4g", bad.loss()),
               absl::StrFormat("%.4g", bad.grad_norm()),
               spike ? absl::StrFormat("%.4g", bad.threshold()) : std::string("-"),
               absl::StrCat(bad.first_sample(), " to ", bad.end_sample() - 1)});
  }
  text += table.Render(2);
  const int64_t all = job.skipped_steps() + job.rewinds();
  if (all > shown) absl::StrAppend(&text, "  and ", all - shown, " older\n");
  for (const v1::SampleRange& range : job.skipped_samples())
    absl::StrAppend(&text, "  samples ", range.first(), " to ", range.end() - 1, " are skipped\n");
  return text;
}

// The settings that exclude targets from the loss. They are needed to interpret its value.
std::string DataText(const v1::Data& data) {
  const auto has_mask = [](const v1::TokenFile& file) { return !file.mask().empty(); };
  const auto masks = std::count_if(data.tokens().begin(), data.tokens().end(), has_mask);
  std::vector<std::string> parts;
  if (masks > 0) parts.push_back(absl::StrCat(masks, " of ", data.tokens_size(), " files with a mask"));
  if (data.has_document_end_token())
    parts.push_back(
        absl::StrCat(data.packing() == v1::PACKING_DOCUMENTS ? "packed whole documents that" : "documents",
                     " end with token ", data.document_end_token()));
  return parts.empty() ? "" : absl::StrCat("data:      ", absl::StrJoin(parts, ", "), "\n");
}

std::string ResultText(const v1::Job& job) {
  std::string text;
  if (job.has_last_validation()) absl::StrAppend(&text, "validation loss: ", ValidationText(job), "\n");
  if (job.epoch_samples() > 0) absl::StrAppend(&text, "epochs:    ", EpochText(job), "\n");
  return text;
}

std::string EventText(const v1::Job& job) {
  TextTable table({"TIME", "STATE", "MESSAGE"});
  for (const v1::Job::Event& event : job.events()) {
    table.Add({absl::FormatTime("%H:%M:%S", absl::FromUnixNanos(event.unix_nanos()), absl::UTCTimeZone()),
               StateName(event.state()), ManyLines(event.message())});
  }
  return absl::StrCat("events (UTC):\n", table.Render(2));
}

std::string AfterText(const v1::Job& job) {
  return absl::StrJoin(job.after(), ", ", [](std::string* out, const v1::Job::After& after) {
    absl::StrAppend(out, OneLine(after.job()), after.succeeded() ? " (succeeded)" : "");
  });
}

// "2.0 h: step 70%, exposed 20%, queue 10%": the goodput ledger in descending order. Causes that round to 0%
// are omitted.
std::string LedgerText(const v1::Job::Ledger& ledger) {
  constexpr char kSuffix[] = "_seconds";
  std::vector<std::pair<double, std::string>> shares;
  double all = 0;
  for (int i = 0; i < ledger.GetDescriptor()->field_count(); ++i) {
    const auto* field = ledger.GetDescriptor()->field(i);
    if (!absl::EndsWith(field->name(), kSuffix)) continue;
    const double seconds = ledger.GetReflection()->GetDouble(ledger, field);
    all += seconds;
    shares.emplace_back(seconds, absl::StripSuffix(field->name(), kSuffix));
  }
  if (all <= 0) return "";
  std::sort(shares.rbegin(), shares.rend());
  std::vector<std::string> words;
  for (const auto& [seconds, cause] : shares) {
    if (seconds >= 0.005 * all) words.push_back(absl::StrFormat("%s %.0f%%", cause, 100 * seconds / all));
  }
  return absl::StrCat("time:      ", HumanSeconds(all), ": ", absl::StrJoin(words, ", "), "\n");
}

std::string Indented(const std::string& text) {
  return absl::StrCat("  ", absl::StrReplaceAll(absl::StripSuffix(text, "\n"), {{"\n", "\n  "}}), "\n");
}

// " in 42 s", or for several attempts " in 2 m 10 s, 3 attempts". Excludes time in which the job was queued,
// in preflight, or paused.
std::string RunTimeText(const v1::Job& job) {
  if (job.start_unix_nanos() == 0 || job.end_unix_nanos() < job.start_unix_nanos()) return "";
  const bool again = job.attempt() > 1;
  const int64_t begin = again ? job.create_unix_nanos() : job.start_unix_nanos();
  const v1::Job::Ledger& ledger = job.ledger();
  const double waited =
      again ? ledger.queue_seconds() + ledger.preflight_seconds() + ledger.pause_seconds() : 0;
  std::string text = absl::StrCat(
      " in ", HumanSeconds(std::max(0.0, 1e-9 * static_cast<double>(job.end_unix_nanos() - begin) - waited)));
  if (again) absl::StrAppend(&text, ", ", job.attempt(), " attempts");
  if (job.initial_checkpoint_step() > 0)
    absl::StrAppend(&text, ", resumed after step ", job.initial_checkpoint_step());
  return text;
}

}  // namespace

std::string DescribeJob(const v1::Job& job, absl::Time now) {
  const int64_t attempts = ResolvedSpecOf(job).restart().max_attempts() + job.refused_launches() +
                           job.attempts_before_checkpoint() + job.rewinds_since_checkpoint() +
                           job.drains_since_checkpoint();
  std::string text = absl::StrCat("id:        ", job.id(), "\nstate:     ", StateName(job.state()));
  if (!job.reason().empty()) absl::StrAppend(&text, " (", FirstLine(ReasonText(job, now)), ")");
  absl::StrAppend(&text, "\nattempt:   ", job.attempt(), " of ", attempts,
                  "\nranks:     ", RanksText(job, " of "),
                  "\nsubmitted: ", TimeText(job.create_unix_nanos(), now),
                  "\nstarted:   ", TimeText(job.start_unix_nanos(), now),
                  job.attempt() > 1 ? absl::StrCat(", attempt ", job.attempt()) : "",
                  "\nended:     ", TimeText(job.end_unix_nanos(), now), "\n");
  text += LedgerText(job.ledger());
  if (!job.submitter().empty()) absl::StrAppend(&text, "submitter: ", OneLine(job.submitter()), "\n");
  if (job.spec().priority() != 0) absl::StrAppend(&text, "priority:  ", job.spec().priority(), "\n");
  if (job.spec().train().has_lora())
    absl::StrAppend(&text, "LoRA:      ", LoraText(job.spec().train().lora()), "\n");
  if (!job.project().empty()) absl::StrAppend(&text, "project:   ", OneLine(job.project()), "\n");
  if (!job.labels().empty())
    absl::StrAppend(&text, "labels:    ", OneLine(LabelText(job.labels(), ", ")), "\n");
  if (job.preemptible()) text += "preemptible: by jobs of higher priority\n";
  if (job.backfilled())
    text += "backfilled: it leaves when a job before it in the queue can start with its slots\n";
  if (job.has_shrunk()) {
    const char* const next = job.end_unix_nanos() != 0
                                 ? "\n"
                                 : "; its next launch uses all ranks if available (pause and resume it)\n";
    absl::StrAppend(&text, "fewer ranks, because it ", FirstLine(job.shrunk().reason()), next);
  }
  if (!job.after().empty()) absl::StrAppend(&text, "after:     ", AfterText(job), "\n");
  if (!job.waiting().remedy().empty()) absl::StrAppend(&text, "waits for: ", job.waiting().remedy(), "\n");
  if (!job.request_id().empty()) absl::StrAppend(&text, "request:   ", job.request_id(), "\n");
  if (job.spec().model().has_package())
    absl::StrAppend(&text, "package:   ", PackageText(job.spec().model()), "\n");
  text += DataText(job.spec().data());
  for (const std::string& warning : job.warnings())
    absl::StrAppend(&text, "warning:   ", OneLine(warning), "\n");
  if (job.has_last_step()) {
    Progress last = ProgressOf(job.last_step(), TotalSteps(job), 0);
    if (IsEnded(job.state())) last.eta_seconds = kNoEta;
    absl::StrAppend(&text, "progress:  ", ProgressLine(last), "\nloss:      ", LossText(job, job.last_step()),
                    "\n", ResultText(job),
                    "device allocations in steady state: ", job.steady_device_mallocs(), "\n");
  } else if (job.has_previous_last_step()) {
    absl::StrAppend(&text, "progress:  step ", StepText(job),
                    "\nloss:      ", LossText(job, job.previous_last_step()), "\n", ResultText(job));
  }
  if (job.has_failure()) {
    const std::string cause = CauseName(job.failure().cause());
    absl::StrAppend(&text, EndedWell(job.failure()) ? "end" : "failure", " of attempt ",
                    job.failure().attempt(), cause.empty() ? "" : absl::StrCat(" (", cause, ")"), ":\n",
                    FailureText(job));
  }
  text += FailedAttemptText(job);
  if (!job.positions().empty()) text += StalledRanksText(job);
  if (!job.slowest_ranks().empty()) text += SlowRankText(job);
  text += CheckpointText(job, now);
  text += BadStepText(job);
  if (!job.placements().empty()) text += PlacementText(job);
  if (job.has_memory_plan()) text += MemoryText(job);
  if (!job.events().empty()) text += EventText(job);
  absl::StrAppend(&text, "spec:\n", Indented(ToYaml(WithShortPackage(job.spec()))));
  if (job.has_resolved())
    absl::StrAppend(&text, "resolved spec:\n", Indented(ToYaml(WithShortPackage(job.resolved()))));
  return text;
}

std::vector<std::string> NewJobLines(const v1::Job& before, const v1::Job& job) {
  std::vector<std::string> news;
  const bool begun = job.has_restored() && !(before.has_restored() && before.attempt() == job.attempt());
  if (begun && job.restored().step() > 0)
    news.push_back(absl::StrCat("resumes after step ", job.restored().step()));
  std::set<std::pair<int64_t, int64_t>> known;
  for (const v1::SavedCheckpoint& saved : before.checkpoints())
    known.emplace(saved.step(), saved.unix_nanos());
  for (const v1::SavedCheckpoint& saved : job.checkpoints()) {
    if (HasDetails(saved) && known.count({saved.step(), saved.unix_nanos()}) == 0)
      news.push_back(absl::StrCat("checkpoint of step ", saved.step(), " committed (", CostText(saved), ")"));
  }
  const bool failed =
      job.has_failed_checkpoint() && !(before.attempt() == job.attempt() &&
                                       before.failed_checkpoint().step() == job.failed_checkpoint().step());
  if (failed) news.push_back(FailedCheckpointText(job.failed_checkpoint()));
  for (int i = before.warnings_size(); i < job.warnings_size(); ++i)
    news.push_back("warning: " + OneLine(job.warnings(i)));
  return news;
}

std::string Summary(const v1::Job& job, const StepHistory& history) {
  const bool succeeded = job.state() == v1::JOB_STATE_SUCCEEDED;
  std::string text =
      absl::StrCat(job.id(), " ", StateName(job.state()), " after ",
                   succeeded ? absl::StrCat(StepOf(job)) : StepText(job), " steps", RunTimeText(job), "\n");
  if (job.state() == v1::JOB_STATE_FAILED && job.has_failure()) text += FailureText(job);
  if (job.state() == v1::JOB_STATE_CANCELLED && !job.reason().empty())
    absl::StrAppend(&text, "  ", OneLine(job.reason()), "\n");
  const auto row = [&](const char* name, const std::string& value) {
    absl::StrAppend(&text, absl::StrFormat("  %-20s", name), value, "\n");
  };
  if (!job.checkpoints().empty()) {
    const v1::SavedCheckpoint& newest = *job.checkpoints().rbegin();
    row("checkpoint", absl::StrCat("of step ", newest.step(), ", ", OneLine(newest.path())));
  }
  if (job.has_exported()) {
    const v1::SavedCheckpoint& exported = job.exported();
    row("export",
        exported.error().empty() ? OneLine(exported.path()) : "failed: " + OneLine(exported.error()));
  }
  for (const std::string& warning : job.warnings()) row("warning", OneLine(warning));
  const v1::StepReport* newest = NewestStep(job);
  if (newest == nullptr) return text;
  if (job.skipped_steps() > 0) row("skipped", absl::StrCat(job.skipped_steps(), " steps"));
  if (job.rewinds() > 0)
    row("rewound", absl::StrCat(job.rewinds(), " times; describe lists the skipped samples"));
  const Progress last = ProgressOf(*newest, TotalSteps(job), 0);
  const bool seen = history.steps() > 1;
  row("loss", LossText(job, *newest));
  if (job.has_last_validation()) row("validation loss", ValidationText(job));
  if (job.epoch_samples() > 0) row("epochs", EpochText(job));
  row("step",
      seen ? absl::StrCat(HumanSeconds(history.median_step_seconds()), " (median of ", history.steps(), ")")
           : absl::StrCat(HumanSeconds(last.step_seconds), " (the last)"));
  row("tokens/s", HumanCount(seen ? history.tokens_per_second() : last.tokens_per_second));
  const double overlap = seen ? history.overlap() : last.overlap;
  row("overlap",
      overlap < 0 ? "no communication" : OverlapText(overlap) + " of communication hidden by compute");
  // Shorter waits are not worth a line.
  if (history.data_wait_seconds() >= 1)
    row("waited for data", absl::StrCat(HumanSeconds(history.data_wait_seconds()), " in total, on rank 0"));
  row("peak memory", PeakText(job));
  if (job.has_last_step())
    row("device allocations", absl::StrCat(job.steady_device_mallocs(), " in steady state"));
  return text;
}

}  // namespace fsdpd
