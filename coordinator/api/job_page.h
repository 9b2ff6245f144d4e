// Merge of a page of stored jobs with newer live state. Steps are stored only occasionally, and a cancel or a
// failure that could not be written (reconciler.h) is stored later. A query for states filters by the shown
// state, and an order by end time uses the shown end.
//
// Pure.
#pragma once

#include <memory>
#include <vector>

#include "coordinator/store/state_store.h"

namespace fsdpd {

struct ShownPage {
  std::vector<v1::Job> jobs;  // In the order of the query, up to its limit.
  bool more = false;
  JobCursor end;  // Start of the next page, if there is more.
};

// `stored`: the store's result for `query`. `live`: jobs whose stored record may be older than the board,
// read before the store, followed by the board's version of the stored jobs.
ShownPage AsShown(const JobQuery& query, JobPage stored,
                  const std::vector<std::shared_ptr<const v1::Job>>& live);

}  // namespace fsdpd
