#include "coordinator/api/job_page.h"

#include <absl/strings/match.h>

#include <algorithm>
#include <map>
#include <set>

namespace fsdpd {
namespace {

bool Wants(const JobQuery& query, const v1::Job& job) {
  if (!query.project.empty() && query.project != job.project()) return false;
  if (!absl::StartsWith(job.id(), query.id_prefix) || !Matches(query.selector, job.labels())) return false;
  return query.states.empty() ||
         std::find(query.states.begin(), query.states.end(), job.state()) != query.states.end();
}

}  // namespace

ShownPage AsShown(const JobQuery& query, JobPage stored,
                  const std::vector<std::shared_ptr<const v1::Job>>& live) {
  std::map<std::string, const v1::Job*> shown;
  for (const auto& job : live) shown[job->id()] = job.get();
  ShownPage page;
  page.more = stored.more;
  page.end = stored.end;
  const JobCursor stored_end = page.end;
  const auto reached = [&](const v1::Job& job) {
    const JobCursor place = PlaceOf(query, job);
    return (!query.after_cursor || IsBefore(query, query.cursor, place)) &&
           (!stored.more || !IsBefore(query, stored_end, place));
  };
  std::set<std::string> taken;
  for (v1::Job& job : stored.jobs) {
    const auto it = shown.find(job.id());
    // The job on the board may have newer steps at the same revision.
    const bool newer = it != shown.end() && it->second->revision() >= job.revision();
    taken.insert(job.id());
    if (newer) job = *it->second;
    if (Wants(query, job) && (!newer || reached(job))) page.jobs.push_back(std::move(job));
  }
  // Live jobs up to the end of this page whose shown state matches the query while the stored one does not,
  // or whose position in the order differs.
  const bool may_differ = !query.states.empty() || query.by_end;
  for (const auto& [id, job] : shown) {
    if (!may_differ || !Wants(query, *job) || !reached(*job) || !taken.insert(id).second) continue;
    page.jobs.push_back(*job);
  }
  std::sort(page.jobs.begin(), page.jobs.end(), [&](const v1::Job& a, const v1::Job& b) {
    return IsBefore(query, PlaceOf(query, a), PlaceOf(query, b));
  });
  if (static_cast<int>(page.jobs.size()) > query.limit) {
    page.jobs.resize(static_cast<size_t>(query.limit));
    page.more = true;
    page.end = PlaceOf(query, page.jobs.back());
  }
  return page;
}

}  // namespace fsdpd
