#include "tests/sim/accounts.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>

namespace fsdpd::sim {
namespace {

constexpr double kRounding = 1e-3;  // Seconds; sums have many terms.

std::string Name(v1::JobState state) { return v1::JobState_Name(state).substr(sizeof("JOB_STATE_") - 1); }

// Lists the fields explicitly, so that a cause that is missing here fails the check immediately.
double SumOf(const v1::Job::Ledger& ledger, double* least) {
  const double causes[] = {ledger.queue_seconds(), ledger.preflight_seconds(), ledger.start_seconds(),
                           ledger.load_seconds(),  ledger.step_seconds(),      ledger.exposed_seconds(),
                           ledger.save_seconds(),  ledger.replay_seconds(),    ledger.restart_seconds(),
                           ledger.hang_seconds(),  ledger.pause_seconds(),     ledger.stop_seconds(),
                           ledger.other_seconds()};
  double sum = 0;
  *least = causes[0];
  for (const double cause : causes) {
    sum += cause;
    *least = std::min(*least, cause);
  }
  return sum;
}

}  // namespace

void Accounts::Begins(const EventLog* feed) {
  feed_ = feed;
  if (date_set_) since_.clear();
}

void Accounts::Stored(const v1::Job& job) {
  CheckEvents(job);
  CheckLedger(job);
}

void Accounts::CheckEvents(const v1::Job& job) {
  if (job.events().empty())
    return world_->ReportViolation(absl::StrCat("job ", job.id(), ": stored without an event"));
  const v1::Job::Event& last = *job.events().rbegin();
  if (last.state() != job.state())
    world_->ReportViolation(absl::StrCat("job ", job.id(), ": state ", Name(job.state()),
                                         " differs from its newest event (", Name(last.state()), ": ",
                                         last.message(), ")"));
  if (last.number() != job.event_count())
    world_->ReportViolation(absl::StrCat("job ", job.id(), ": newest event number is ", last.number(),
                                         " (want ", job.event_count(), ")"));
}

void Accounts::CheckLedger(const v1::Job& job) {
  const v1::Job::Ledger& ledger = job.ledger();
  if (ledger.until_unix_nanos() == 0) return;
  double least = 0;
  const double since = static_cast<double>(ledger.until_unix_nanos()) / 1e9 - SumOf(ledger, &least);
  if (least < -kRounding)
    world_->ReportViolation(absl::StrCat("job ", job.id(), ": a cause has ", least, " s (want >= 0)"));
  const auto [known, first] = since_.emplace(job.id(), since);
  if (!first && std::abs(known->second - since) > kRounding)
    world_->ReportViolation(absl::StrCat("job ", job.id(), " in state ", Name(job.state()), ": ",
                                         since - known->second, " s have no cause or two causes"));
  // Upper bound of the time between admission and the first accounted second.
  const double waited = since - static_cast<double>(job.create_unix_nanos()) / 1e9;
  if (!date_set_ && (waited < -kRounding || waited > 60))
    world_->ReportViolation(
        absl::StrCat("job ", job.id(), ": its ledger begins ", waited, " s after admission"));
  const bool ended = job.state() == v1::JOB_STATE_SUCCEEDED || job.state() == v1::JOB_STATE_FAILED ||
                     job.state() == v1::JOB_STATE_CANCELLED;
  const double left = static_cast<double>(job.end_unix_nanos() - ledger.until_unix_nanos()) / 1e9;
  if (ended && !date_set_ && std::abs(left) > kRounding)
    world_->ReportViolation(absl::StrCat("job ", job.id(), ": its ledger ends ", left, " s before the job"));
}

void Accounts::ReadFeed() {
  if (feed_ == nullptr) return;
  EventQuery query;
  query.after = cursor_;
  const auto page = feed_->Read(query);
  if (!page.ok())
    return world_->ReportViolation(absl::StrCat("event feed: cannot continue: ", page.status().ToString()));
  for (const v1::Event& event : page->events) {
    if (event.sequence() <= cursor_)
      world_->ReportViolation(absl::StrCat("event feed: event ", event.sequence(), " follows ", cursor_));
    cursor_ = event.sequence();
    if (event.number() == 0) continue;
    int64_t& newest = newest_in_feed_[event.job()];
    if (event.number() != newest + 1)
      world_->ReportViolation(
          absl::StrCat("event feed: event ", event.number(), " of job ", event.job(), " follows ", newest));
    newest = event.number();
  }
}

}  // namespace fsdpd::sim
