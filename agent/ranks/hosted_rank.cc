#include "agent/ranks/hosted_rank.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/rank/flight_recorder.h"

namespace fsdpd {
namespace {

// Evidence is written one look before the hang is reported: the report may end the attempt.
constexpr absl::Duration kBeforeReport = absl::Seconds(1);
constexpr absl::Duration kEvidenceWait =
    absl::Seconds(1);  // How long the report waits for the evidence file.

// Reading a process tree scans all of /proc.
constexpr absl::Duration kStuckLookEvery = absl::Seconds(1);

// Training does not depend on the flight recorder.
UniqueFd NewFlightRecorder(const RankId& id) {
  const absl::StatusOr<int> recorder = MakeFlightRecorder();
  if (recorder.ok()) return UniqueFd(*recorder);
  LogWarning("no flight recorder; the position of the rank will be unknown %s error=%s", ToString(id),
             recorder.status().message());
  return UniqueFd();
}

std::string EndText(const ProcessEnd& end) {
  return end.signal != 0 ? absl::StrCat("signal ", end.signal) : absl::StrCat("exit code ", end.exit_code);
}

}  // namespace

absl::Status HostedRank::Start(const v1::RankLaunch& start, const std::string& binary, const SpawnRank& spawn,
                               v1::Device kind, const absl::StatusOr<UniqueFd>& log) {
  FSDPD_RETURN_IF_ERROR(log.status());
  RankCommand command;
  command.binary = binary;
  command.mark = absl::StrCat(start.job_id(), "/", start.attempt(), "/", start.rank());
  command.log_fd = log->get();
  flight = NewFlightRecorder(id);
  command.flight_fd = flight.get();
  // Ranks share the cores, so one OpenMP thread each, unless the environment of the agent overrides it.
  if (kind == v1::DEVICE_CPU) command.defaults = {{"OMP_NUM_THREADS", "1"}};
  for (const v1::Variable& variable : start.spec().env())
    command.variables[variable.name()] = variable.value();
  FSDPD_ASSIGN_OR_RETURN(process, spawn(command));
  link = std::make_unique<RankLink>(process->TakeSocket());
  v1::AgentToRank message;
  *message.mutable_launch() = start;
  Send(message);
  return absl::OkStatus();
}

void HostedRank::Send(const v1::AgentToRank& message) {
  if (link != nullptr) EndLink(link->Send(message));
}

void HostedRank::EndLink(const absl::Status& status) {
  if (status.ok() || link == nullptr) return;
  if (absl::IsDataLoss(status) || absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status)) {
    final_error = absl::StrCat("rank violated the agent protocol: ", status.message());
    LogError("killed a rank that violated the protocol %s error=%s", ToString(id), final_error);
    process->SignalTree(SIGKILL);  // Before the socket closes, which would make it exit by itself.
  }
  link.reset();
}

absl::StatusOr<std::string> HostedRank::Position() const {
  if (!flight.valid()) return absl::NotFoundError("no flight recorder");
  return DescribeLanePositions(flight.get());
}

void HostedRank::SavePosition() {
  if (position.empty()) position = Position().value_or("");
}

void HostedRank::Take(const v1::StepReport& report) {
  last_step = report.step();
  if (id.rank == 0) last_report = report;
  if (first_counted_step == 0 && !report.has_bad_step()) first_counted_step = report.step();
  if (no_progress.has_value()) no_progress->AddStep(report);
}

std::optional<v1::RankNoProgress> HostedRank::CheckProgress(const std::string& evidence_path,
                                                            absl::Time now) {
  if (!no_progress.has_value()) return std::nullopt;
  const absl::StatusOr<FlightState> state =
      flight.valid() ? ReadFlight(flight.get()) : absl::NotFoundError("no flight recorder");
  no_progress->Poll(state, ProcessStateOf(process->state()), now);
  const bool almost_reported = no_progress->blocked_for(now) + kBeforeReport > no_progress->limit();
  if (almost_reported && evidence == nullptr) {
    const std::string when = absl::FormatTime(absl::Now(), absl::UTCTimeZone());
    const std::string text = absl::StrCat(ToString(id), " ", when, "\n", no_progress->Text(now));
    evidence = process->WriteEvidence(evidence_path, text);
  }
  if (!almost_reported) evidence = nullptr;
  // The first report may end the attempt and is the only one that names the evidence file, so wait a bounded
  // time for the file.
  const bool begun = evidence != nullptr && *evidence == EvidenceState::kBegun;
  if (begun && no_progress->blocked_for(now) <= no_progress->limit() + kEvidenceWait) return std::nullopt;
  std::optional<v1::RankNoProgress> news = no_progress->TakeReport(now);
  if (!news.has_value()) return news;
  const bool still = news->no_progress_ms() > 0;
  if (still && evidence != nullptr && *evidence == EvidenceState::kWritten) news->set_evidence(evidence_path);
  if (std::exchange(no_progress_logged, still) != still) {
    if (still) {
      LogWarning("rank makes no progress %s blocked_in=%s", ToString(id), news->position());
    } else {
      LogWarning("rank makes progress again %s", ToString(id));
    }
  }
  return news;
}

void HostedRank::Kill(absl::Time now) {
  process->SignalTree(SIGKILL);
  killed_at = std::min(killed_at, now);
  if (IsStuck(now)) next_tree_read = now + kStuckLookEvery;
}

bool HostedRank::HasStarted() const {
  const absl::StatusOr<FlightState> state =
      flight.valid() ? ReadFlight(flight.get()) : absl::NotFoundError("no flight recorder");
  return !state.ok() || state->phase != FlightPhase::kStarting;
}

v1::RankExit HostedRank::ExitOf(const ProcessEnd& end, std::vector<std::string> log_tail) const {
  v1::RankExit exit;
  exit.set_exit_code(end.exit_code);
  exit.set_signal(end.signal);
  exit.set_error(final_error);
  exit.set_last_step(last_step);
  if (last_report.has_value()) *exit.mutable_last_report() = *last_report;
  exit.set_first_counted_step(first_counted_step);
  if (bad_step.has_value()) *exit.mutable_bad_step() = *bad_step;
  if (fault.has_value()) *exit.mutable_error_class() = *fault;
  // A library called exit(): this must not count as a completed job.
  if (end.exit_code == 0 && end.signal == 0 && !finished && exit.error().empty()) {
    exit.set_error("exited with code 0 before it reported completion");
  }
  const auto line = std::find_if(log_tail.rbegin(), log_tail.rend(), [](const std::string& each) {
    return !absl::StartsWith(each, "[fsdpd-agent");  // A notice of the agent, such as about missing lines.
  });
  const bool by_itself = end.signal == 0 || end.signal == SIGABRT;
  const bool failed = end.exit_code != 0 || end.signal != 0;
  if (failed && by_itself && exit.error().empty() && line != log_tail.rend() && !HasStarted()) {
    exit.set_error(
        absl::StrCat("exited before it started (", EndText(end), "): ", absl::StripAsciiWhitespace(*line)));
  }
  for (std::string& line : log_tail) exit.add_log_tail(std::move(line));
  return exit;
}

v1::RankLaunch LaunchOf(const v1::Launch& launch, int index, const std::string& bind_address) {
  v1::RankLaunch start;
  start.set_job_id(launch.job_id());
  start.set_attempt(launch.attempt());
  *start.mutable_spec() = launch.spec();
  start.set_rank(launch.first_rank() + index);
  start.set_world_size(launch.world_size());
  start.set_device(index < launch.devices_size() ? launch.devices(index) : index);
  start.set_bind_address(bind_address);
  *start.mutable_skipped_samples() = launch.skipped_samples();
  start.set_checkpoint_step(launch.checkpoint_step());
  start.set_preflight(launch.job_id() == kPreflightJob);
  return start;
}

std::string Describe(const v1::RankExit& exit) {
  std::string text = exit.signal() != 0 ? absl::StrCat("signal=", exit.signal())
                                        : absl::StrCat("exit_code=", exit.exit_code());
  if (!exit.error().empty()) absl::StrAppend(&text, " error=", exit.error());
  absl::StrAppend(&text, " cancelled=", exit.cancelled() ? 1 : 0,
                  " peer_failed=", exit.peer_failed() ? 1 : 0);
  if (!exit.position().empty()) absl::StrAppend(&text, " blocked_in=", exit.position());
  return text;
}

}  // namespace fsdpd
