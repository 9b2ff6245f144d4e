// Parameter side of a program: emits Publish, Gather and Release as compute moves from pass to pass.
//
// Call order: Publish once; per pass GatherReady, the pass itself (which uses Reads() and waits for
// Gathers()), then ReleaseAfter; Finish once.
#pragma once

#include <vector>

#include "fsdp/plan/program/program_writer.h"
#include "fsdp/plan/program/residencies.h"

namespace fsdpd {

class GatheredParams {
 public:
  // With `releases`, each residency ends with a Release; otherwise its bytes stay occupied for the whole
  // step. The writer must outlive this object.
  GatheredParams(const Spec& spec, const Layout& layout, Schedule passes, bool releases,
                 ProgramWriter* writer);

  // Emits the replica all-gather (HFSDP); does nothing otherwise.
  void GatherReplica();
  // Gathers are listed as early as they may start, so that an executor that submits in list order never
  // delays one.
  void GatherReady(int pass);
  // The buckets that a pass reads, and the gathers that it waits for.
  std::vector<BufferUse> Reads(int pass) const;
  std::vector<int> Gathers(int pass) const;
  // Ends the residencies whose last pass this was. The pass must be the last instruction on the compute lane.
  void ReleaseAfter(int pass);
  void Finish();

  const Schedule& passes() const { return passes_; }
  // The first instruction of the step that reads the bucket's main parameters.
  int FirstReader(int bucket) const { return first_reader_[bucket]; }

 private:
  void Gather(const PlannedGather& planned);
  void End(const Residency& residency);

  const Layout& layout_;
  ProgramWriter* const writer_;
  const Schedule passes_;
  const bool releases_;
  std::vector<Residency> residencies_;
  std::vector<std::vector<int>> ending_;  // By pass: indices of residencies.
  std::vector<PlannedGather> gathers_;
  size_t next_gather_ = 0;
  std::vector<int> publish_, last_gather_, first_reader_;  // By bucket; -1 for none.
};

}  // namespace fsdpd
