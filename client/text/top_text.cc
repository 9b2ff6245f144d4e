#include "client/text/top_text.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>

#include "base/text.h"
#include "client/text/job_text.h"
#include "client/text/progress_line.h"
#include "client/text/text_table.h"

namespace fsdpd {
namespace {

bool HasSlots(const v1::Job& job) {
  switch (job.state()) {
    case v1::JOB_STATE_STARTING:
    case v1::JOB_STATE_RUNNING:
    case v1::JOB_STATE_STOPPING:
    case v1::JOB_STATE_CANCELLING:
    case v1::JOB_STATE_PAUSING:
    case v1::JOB_STATE_PREFLIGHT:
      return true;
    default:
      return false;
  }
}

// "18.9 MiB (+3%)": the measured peak, and its difference from the plan.
std::string MemoryText(const v1::Job& job) {
  const int64_t measured = job.peak_bytes(), planned = job.memory_plan().peak_bytes();
  if (measured == 0) return "-";
  // With pipeline stages the plan is that of the fullest stage, but the first stage is measured.
  if (planned == 0 || job.resolved().parallel().pipeline() > 1) return HumanBytes(measured);
  const double drift = 100.0 * (static_cast<double>(measured) / static_cast<double>(planned) - 1);
  return absl::StrFormat("%s (%+.0f%%)", HumanBytes(measured), drift);
}

std::string PowerText(const v1::StepReport& step) {
  if (!step.has_power() || !(step.step_seconds() > 0)) return "-";
  return absl::StrFormat("%.0f W", step.power().energy_joules() / step.step_seconds());
}

// Shares of step time that rank 0 lost: "exposed 12%, data 3%".
std::string LostText(const v1::StepReport& step) {
  std::string text;
  const auto add = [&](const char* what, double seconds) {
    const double share = step.step_seconds() > 0 ? 100 * seconds / step.step_seconds() : 0;
    if (share >= 1) absl::StrAppend(&text, text.empty() ? "" : ", ", what, absl::StrFormat(" %.0f%%", share));
  };
  add("exposed", step.exposed_seconds());
  add("data", step.data_wait_seconds());
  return text.empty() ? "-" : text;
}

std::vector<std::string> RowOf(const v1::Job& job, absl::Time now) {
  std::string state = StateName(job.state());
  if (job.stalled_since_unix_nanos() != 0) {
    const double still = absl::ToDoubleSeconds(now - absl::FromUnixNanos(job.stalled_since_unix_nanos()));
    absl::StrAppend(&state, ", no step for ", HumanSeconds(std::max(0.0, still)));
  }
  const v1::StepReport& step = job.last_step();
  const std::string steps = StepText(job);
  if (!job.has_last_step())
    return {job.id(),        state, steps, "-", "-", "-", "-", "-", "-", "-", absl::StrCat(WorldSizeOf(job)),
            MemoryText(job), "-"};
  const Progress progress = ProgressOf(step, TotalSteps(job), 0);
  return {job.id(),
          state,
          steps,
          absl::StrFormat("%.4f", progress.loss),
          job.has_last_validation() ? absl::StrFormat("%.4f", job.last_validation().loss()) : "-",
          HumanCount(progress.tokens_per_second),
          HumanSeconds(progress.step_seconds),
          OverlapText(progress.overlap),
          LostText(step),
          SlowestText(job),
          absl::StrCat(WorldSizeOf(job)),
          MemoryText(job),
          PowerText(step)};
}

}  // namespace

std::string TopText(const std::vector<v1::Job>& jobs, const std::vector<v1::Node>& nodes, absl::Time now,
                    int width) {
  int64_t connected = 0, slots = 0, free = 0, queued = 0;
  for (const v1::Node& node : nodes) {
    if (!node.connected()) continue;
    ++connected;
    slots += node.slots();
    free += node.free_slots();
  }
  std::vector<v1::Job> running;
  for (const v1::Job& job : jobs) {
    if (job.state() == v1::JOB_STATE_QUEUED) ++queued;
    if (HasSlots(job)) running.push_back(job);
  }
  std::stable_sort(running.begin(), running.end(),
                   [](const v1::Job& a, const v1::Job& b) { return WorldSizeOf(a) > WorldSizeOf(b); });
  TextTable table({"ID", "STATE", "STEP", "LOSS", "VALIDATION", "TOKENS/S", "TOOK", "OVERLAP", "LOST",
                   "SLOWEST", "RANKS", "PEAK (PLAN)", "POWER"});
  for (const v1::Job& job : running) table.Add(RowOf(job, now));
  const std::string head = absl::StrCat(connected, " of ", nodes.size(), " nodes ready, ", slots - free,
                                        " of ", slots, " slots in use, ", running.size(),
                                        running.size() == 1 ? " job has slots, " : " jobs have slots, ",
                                        queued, queued == 1 ? " waits" : " wait");
  return absl::StrCat(width > 0 ? Truncate(head, width) : head, "\n", table.Render(0, width));
}

}  // namespace fsdpd
