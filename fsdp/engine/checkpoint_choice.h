// Which checkpoint an attempt starts from: all ranks the same, and one that is whole. Where checkpoint.dir
// holds some that the job wrote itself, it goes on from the newest there; else checkpoint.load says. Rank 0
// names one, every rank reads its share of the files against their checksums, and what any of them finds
// damaged, or cannot read since a disk fails, is passed over for the next older one. A Hugging Face directory
// has no checksums: of it every rank looks at index, heads and sizes.
//
// What is the job's own is told by the id in it, so what another run left is never taken for it, but where
// the job began from that very directory. Another run's checkpoints that are later than where this job starts
// are an error: one day they would be the newest. What is damaged in checkpoint.dir must get another name
// before the job comes to that step again; that is for who holds the directory's lock (saver.h): here nothing
// is written. What rank 0 sees and another rank does not is not damaged: it stays, and the attempt fails.
//
// A job that is known to have committed a checkpoint does not begin anew: a directory without any of its own
// is gone, or not mounted. Where the one that is known is not there and an older one is, that is taken, which
// is told.
//
// Errors, the same on all ranks, and marked on those that did not meet it themselves (peer_lost.h): NOT_FOUND
// where checkpoint.load has none, or checkpoint.dir none of a job's that has committed some; DATA_LOSS where
// none is whole: nobody starts fresh by surprise; FAILED_PRECONDITION for a directory of another run; the
// store's.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/comm/store.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

struct ChosenCheckpoint {
  std::string path;
  bool own = false;  // The job wrote it itself.
  // On rank 0, the newest first:
  std::vector<std::string> passed_over = {};  // "iter_0000200: why".
  std::vector<std::string> set_aside = {};    // Paths in checkpoint.dir that are damaged, and later.
};

// None: the job starts fresh. `job`: its id, or empty: then nothing is its own. `known_step`: of the newest
// checkpoint that the job is known to have committed; 0: of none is known.
absl::StatusOr<std::optional<ChosenCheckpoint>> ChooseCheckpoint(const Spec& spec, const std::string& job,
                                                                 int64_t known_step, Store* store, int rank);

}  // namespace fsdpd
