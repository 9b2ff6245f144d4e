#include <utility>

#include "base/check.h"
#include "fsdp/plan/program/gathered_params.h"
#include "fsdp/plan/program/program.h"
#include "fsdp/plan/program/program_writer.h"
#include "fsdp/plan/program/stage_transfers.h"

namespace fsdpd {

// Gathers start where those of a training step's first forward do. Buffers that are live together here are
// therefore live together in training too, and have disjoint bytes.
Program CompileEvaluation(const Spec& spec, const ModelFacts& model, const Layout& layout,
                          const Program& training) {
  FSDPD_CHECK(training.kind == ProgramKind::kTraining && model.units.size() == layout.units.size());
  ProgramWriter writer(spec, layout, ProgramKind::kEvaluation);
  GatheredParams params(spec, layout, EvaluationSchedule(static_cast<int>(layout.units.size())),
                        /*releases=*/true, &writer);
  StageTransfers stage_transfers(layout, params.passes(), &writer);
  params.GatherReplica();
  for (size_t i = 0; i < params.passes().size(); ++i) {
    const int pass = static_cast<int>(i);
    params.GatherReady(pass);
    stage_transfers.ReceiveFor(pass);
    Instruction forward{Op::kForward, params.passes()[i].unit, -1, /*micro_batch=*/0};
    forward.uses = params.Reads(pass);
    std::vector<int> after = params.Gathers(pass);
    for (const int other : stage_transfers.WaitsFor(pass)) after.push_back(other);
    writer.Append(std::move(forward), std::move(after));
    stage_transfers.SendAfter(pass);
    params.ReleaseAfter(pass);
  }
  params.Finish();
  const int end = writer.Append({Op::kLoss}, {writer.last(LaneId::kCompute), writer.last(LaneId::kSend)});
  // Everything follows the first instruction, and Loss follows everything, so evaluation batches never
  // overlap.
  writer.AfterPrevious(0, end);
  if (stage_transfers.first_receive() > 0) writer.AfterPrevious(stage_transfers.first_receive(), end);
  return writer.FinishWithin(training);
}

}  // namespace fsdpd
