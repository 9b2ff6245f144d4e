// A page of jobs as readers see each: what is stored, and what of a live job is newer than that. Steps are
// stored now and then, and a cancel or a failure that found no room on the disk (reconciler.h) not yet. A
// query for states asks for those that are shown, and one by ends has each where it is shown.
//
// Pure.
#pragma once

#include <memory>
#include <vector>

#include "coordinator/store/state_store.h"

namespace fsdpd {

struct ShownPage {
  std::vector<v1::Job> jobs;  // In its order, at most as many as the query's limit.
  bool more = false;
  JobCursor end;  // Where the next page begins, when there is more.
};

// `stored`: the store's answer to `query`. `live`: jobs whose stored record may be behind the board, read
// before the store, followed by the board's version of the stored jobs.
ShownPage AsShown(const JobQuery& query, JobPage stored,
                  const std::vector<std::shared_ptr<const v1::Job>>& live);

}  // namespace fsdpd
