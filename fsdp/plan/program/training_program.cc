#include <algorithm>
#include <utility>

#include "base/check.h"
#include "fsdp/plan/program/crossings.h"
#include "fsdp/plan/program/fingerprint.h"
#include "fsdp/plan/program/gathered_params.h"
#include "fsdp/plan/program/program.h"
#include "fsdp/plan/program/program_writer.h"
#include "fsdp/plan/program/reduced_grads.h"

namespace fsdpd {
namespace {

Instruction RunPass(const Pass& pass, const Spec& spec, const ModelFacts& model) {
  Instruction run;
  run.op = pass.op;
  run.unit = pass.unit;
  run.micro_batch = pass.micro_batch;
  run.puts_off = pass.op == Op::kBackward && model.stage.puts_off;
  if (pass.op != Op::kBackwardWeights) run.recompute = RecomputeOf(spec, model, pass.unit);
  return run;
}

// Behind it the unit's gradient of the micro-batch is whole.
bool EndsGradient(const Instruction& run) { return run.op != Op::kForward && !run.puts_off; }

// A Snapshot of each bucket, by bucket. What changes comes in the order of the Updates; the rest last, for
// it waits for nothing.
std::vector<int> AppendSnapshots(const Layout& layout, const ReducedGrads& grads, ProgramWriter* writer) {
  std::vector<int> snapshots(layout.buckets.size(), -1);
  for (const bool changes : {true, false}) {
    for (size_t i = 0; i < layout.buckets.size(); ++i) {
      if (layout.buckets[i].changes() != changes) continue;
      Instruction snapshot;
      snapshot.op = Op::kSnapshot;
      snapshot.unit = layout.buckets[i].unit;
      snapshot.bucket = static_cast<int>(i);
      const int update = changes ? grads.UpdateOrEnd(snapshot.bucket) : -1;
      snapshots[i] = writer->Append(std::move(snapshot), {update});
    }
  }
  return snapshots;
}

// What reads main parameters waits for their Update in the step before. For a bucket without one, its bytes
// must be free, which they are when everything but the Updates of that step has ended. An Update waits for
// that step's Snapshot of what it overwrites; `snapshots` is empty where there are none. What comes from
// other stages waits for the Norm, behind which nothing of that step is on its way.
void WaitForPreviousStep(const Layout& layout, const GatheredParams& params, const ReducedGrads& grads,
                         const std::vector<int>& snapshots, const Crossings& crossings,
                         ProgramWriter* writer) {
  std::vector<std::pair<int, int>> waits;
  for (size_t i = 0; i < layout.buckets.size(); ++i) {
    const int b = static_cast<int>(i);
    waits.emplace_back(params.FirstReader(b), grads.UpdateOrEnd(b));
    if (!snapshots.empty() && layout.buckets[i].changes()) {
      waits.emplace_back(grads.UpdateOrEnd(b), snapshots[i]);
    }
  }
  if (crossings.first_receive() >= 0)
    waits.emplace_back(crossings.first_receive(), writer->last(LaneId::kReduce));
  std::sort(waits.begin(), waits.end());
  for (const auto& [later, earlier] : waits) writer->AfterPrevious(later, earlier);
}

}  // namespace

Program CompileProgram(const Spec& spec, const ModelFacts& model, const Layout& layout) {
  const auto units = static_cast<int>(layout.units.size());
  const auto micro_batches = static_cast<int>(spec.micro_batches_per_step());
  FSDPD_CHECK(units > 0 && micro_batches > 0);
  ProgramWriter writer(spec, layout, ProgramKind::kTraining);
  GatheredParams params(spec, layout, TrainingSchedule(units, micro_batches, layout.stage),
                        spec.shards_params(), &writer);
  Crossings crossings(layout, params.passes(), &writer);
  ReducedGrads grads(spec, layout, &writer);
  params.Publish();
  for (size_t i = 0; i < params.passes().size(); ++i) {
    const Pass& pass = params.passes()[i];
    const int at = static_cast<int>(i);
    params.GatherWhatMayStart(at);
    crossings.ReceiveFor(at);
    std::vector<int> after = params.Gathers(pass.unit);
    for (const int other : crossings.WaitsFor(at)) after.push_back(other);
    Instruction run = RunPass(pass, spec, model);
    const bool ends_gradient = EndsGradient(run);
    run.uses = params.Reads(pass.unit);
    if (pass.op == Op::kForward) {
      writer.Append(std::move(run), std::move(after));
    } else {
      grads.Backward(std::move(run), std::move(after));
    }
    crossings.SendAfter(at);
    params.ReleaseAfter(at);
    if (ends_gradient) grads.Reduce(pass.unit, pass.micro_batch);
  }
  grads.NormAndUpdates();
  params.Finish();
  std::vector<int> snapshots;
  if (spec.checkpoint.saves()) snapshots = AppendSnapshots(layout, grads, &writer);
  WaitForPreviousStep(layout, params, grads, snapshots, crossings, &writer);
  Program program = writer.Finish();
  program.hash = HashOf(Fingerprint(spec, layout, program));
  return program;
}

}  // namespace fsdpd
