#include <algorithm>
#include <utility>

#include "base/check.h"
#include "fsdp/plan/model/activation_policy.h"
#include "fsdp/plan/program/gathered_params.h"
#include "fsdp/plan/program/program.h"
#include "fsdp/plan/program/program_writer.h"
#include "fsdp/plan/program/reduced_grads.h"
#include "fsdp/plan/program/stage_transfers.h"
#include "fsdp/plan/program/staged_activations.h"
#include "fsdp/plan/program/staged_state.h"

namespace fsdpd {
namespace {

Instruction RunPass(const Pass& pass, const Spec& spec, const ModelFacts& model) {
  Instruction run{pass.op, pass.unit, -1, pass.micro_batch};
  run.defers_grads = pass.op == Op::kBackward && model.stage.defers_grads;
  if (pass.op != Op::kBackwardWeights) run.recompute = RecomputeOf(spec, model, pass.unit);
  return run;
}

// The last instruction that adds to the unit's gradient of the micro-batch.
bool EndsGradient(const Instruction& run) { return run.op != Op::kForward && !run.defers_grads; }

int AppendSnapshot(const Layout& layout, int bucket, int update, ProgramWriter* writer) {
  Instruction snapshot{Op::kSnapshot, layout.buckets[bucket].unit, bucket};
  const int state = writer->Find(BufferKind::kState, bucket);
  if (state >= 0) snapshot.uses = {{state, Access::kRead}};
  return writer->Append(std::move(snapshot), {update});
}

// Emits the Updates with their Fetches and Offloads, and a Snapshot of each bucket if the job saves. Returns
// the Snapshots by bucket. Snapshots of updated buckets are in Update order; the others come last, because
// nothing waits for them. An offloaded bucket's Snapshot precedes the Fetch that reuses its bytes.
std::vector<int> AppendUpdates(const Spec& spec, const Layout& layout, ReducedGrads* grads,
                               StagedState* state, ProgramWriter* writer) {
  const auto buckets = static_cast<int>(layout.buckets.size());
  std::vector<int> snapshots(layout.buckets.size(), -1);
  const int norm = grads->Norm();
  state->Begin();
  for (int b = 0; b < buckets; ++b) {
    if (!layout.buckets[b].is_updated()) continue;
    const int update = grads->Update(b, norm, state->FetchOf(b));
    if (layout.buckets[b].offloaded.empty()) continue;
    if (spec.checkpoint.saves()) snapshots[b] = AppendSnapshot(layout, b, update, writer);
    state->Updated(b, update, snapshots[b]);
  }
  grads->Occupy();
  state->Occupy();
  return snapshots;
}

void AppendSnapshots(const Layout& layout, const ReducedGrads& grads, ProgramWriter* writer,
                     std::vector<int>* snapshots) {
  for (const bool changes : {true, false}) {
    for (size_t i = 0; i < layout.buckets.size(); ++i) {
      if (layout.buckets[i].is_updated() != changes || (*snapshots)[i] >= 0) continue;
      const auto b = static_cast<int>(i);
      (*snapshots)[i] = AppendSnapshot(layout, b, changes ? grads.UpdateOrEnd(b) : -1, writer);
    }
  }
}

// Dependencies on the previous step:
//  - the first reader of main parameters waits for their Update; without an Update, it waits until its bytes
//    are free, i.e. until everything except the Updates of that step has completed;
//  - an Update waits for the Snapshot of the values that it overwrites;
//  - the first Receive waits for Norm, after which no transfer of that step is in flight;
//  - the first Fetch waits until all offloaded state has been written back.
void WaitForPreviousStep(const Layout& layout, const GatheredParams& params, const ReducedGrads& grads,
                         const std::vector<int>& snapshots, const StageTransfers& stage_transfers,
                         const StagedState& state, ProgramWriter* writer) {
  std::vector<std::pair<int, int>> waits;
  for (size_t i = 0; i < layout.buckets.size(); ++i) {
    const int b = static_cast<int>(i);
    waits.emplace_back(params.FirstReader(b), grads.UpdateOrEnd(b));
    // An Update on another lane is not ordered after compute.
    if (state.first_fetch() >= 0) waits.emplace_back(params.FirstReader(b), writer->last(LaneId::kCompute));
    const bool staged = state.FetchOf(b) >= 0;  // Already ordered after all copies.
    if (snapshots[i] >= 0 && layout.buckets[i].is_updated() && !staged)
      waits.emplace_back(grads.UpdateOrEnd(b), snapshots[i]);
  }
  if (state.first_fetch() >= 0) waits.emplace_back(state.first_fetch(), state.last_use());
  if (stage_transfers.first_receive() >= 0)
    waits.emplace_back(stage_transfers.first_receive(), writer->last(LaneId::kReduce));
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
  StageTransfers stage_transfers(layout, params.passes(), &writer);
  ReducedGrads grads(spec, layout, &writer);
  StagedActivations kept(spec, model, &writer);
  params.GatherReplica();
  for (size_t i = 0; i < params.passes().size(); ++i) {
    const Pass& pass = params.passes()[i];
    const int at = static_cast<int>(i);
    params.GatherReady(at);
    stage_transfers.ReceiveFor(at);
    std::vector<int> after = params.Gathers(at);
    for (const int other : stage_transfers.WaitsFor(at)) after.push_back(other);
    kept.Before(pass);
    after.push_back(kept.WaitsFor(pass));
    Instruction run = RunPass(pass, spec, model);
    const bool ends_gradient = EndsGradient(run);
    run.uses = params.Reads(at);
    if (pass.op == Op::kForward) {
      writer.Append(std::move(run), std::move(after));
    } else {
      grads.Backward(std::move(run), std::move(after));
    }
    kept.After(pass);
    stage_transfers.SendAfter(at);
    params.ReleaseAfter(at);
    if (ends_gradient) grads.Reduce(pass.unit, pass.micro_batch);
  }
  StagedState state(layout, &writer);
  std::vector<int> snapshots = AppendUpdates(spec, layout, &grads, &state, &writer);
  params.Finish();
  if (spec.checkpoint.saves()) AppendSnapshots(layout, grads, &writer, &snapshots);
  WaitForPreviousStep(layout, params, grads, snapshots, stage_transfers, state, &writer);
  return writer.Finish();
}

}  // namespace fsdpd
