#include "coordinator/job_page.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace fsdpd {
namespace {

JobCursor PlaceOf(const v1::Job& job) { return {job.create_unix_nanos(), job.id()}; }

// In the order of pages: newest first.
bool Before(const JobCursor& a, const JobCursor& b) {
  return std::tie(a.create_unix_nanos, a.id) > std::tie(b.create_unix_nanos, b.id);
}

bool Wants(const JobQuery& query, const v1::Job& job) {
  if (!query.project.empty() && query.project != job.project()) return false;
  if (!Matches(query.selector, job.labels())) return false;
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
  if (!stored.jobs.empty()) page.end = PlaceOf(stored.jobs.back());
  const JobCursor stored_end = page.end;
  std::set<std::string> taken;
  for (v1::Job& job : stored.jobs) {
    const auto it = shown.find(job.id());
    // The same revision on the board has newer steps.
    const bool newer = it != shown.end() && it->second->revision() >= job.revision();
    taken.insert(job.id());
    if (newer) job = *it->second;
    if (Wants(query, job)) page.jobs.push_back(std::move(job));
  }
  // Those that are stored in another state than they are shown in, as far as this page reaches.
  for (const auto& [id, job] : shown) {
    const JobCursor place = PlaceOf(*job);
    const bool reached =
        (!query.after_cursor || Before(query.cursor, place)) && (!stored.more || !Before(stored_end, place));
    if (query.states.empty() || !Wants(query, *job) || !reached || !taken.insert(id).second) continue;
    page.jobs.push_back(*job);
  }
  std::sort(page.jobs.begin(), page.jobs.end(),
            [](const v1::Job& a, const v1::Job& b) { return Before(PlaceOf(a), PlaceOf(b)); });
  if (static_cast<int>(page.jobs.size()) > query.limit) {
    page.jobs.resize(static_cast<size_t>(query.limit));
    page.more = true;
    page.end = PlaceOf(page.jobs.back());
  }
  return page;
}

}  // namespace fsdpd
