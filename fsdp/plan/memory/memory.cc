#include "fsdp/plan/memory/memory.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <map>

#include "base/limits.h"
#include "base/text.h"
#include "fsdp/plan/memory/host_memory.h"
#include "fsdp/plan/model/activation_policy.h"
#include "fsdp/plan/program/schedule.h"

namespace fsdpd {
namespace {

// LibTorch gives cuBLAS 32 MiB of workspace per stream that multiplies on Hopper, and the same for cuBLASLt.
constexpr int64_t kCudaLibraryBytes = int64_t{64} << 20;

// The TCP communicator has its own receive buffer for fp32 sums (narrower communication uses the arena). Each
// communicator that reduces a bucket, or a shard between replicas, keeps a buffer of its largest message.
int64_t TcpBytes(const Layout& layout) {
  std::map<Group, int64_t> largest;  // Elements.
  for (const Bucket& bucket : layout.buckets) {
    if (!bucket.trainable) continue;
    const auto takes = [&largest](Group group, int64_t elements) {
      largest[group] = std::max(largest[group], elements);
    };
    if (bucket.types.grad_comm == DType::kFp32) takes(bucket.groups.reduce, bucket.bucket_elements);
    if (bucket.groups.replicate != Group::kSelf) takes(bucket.groups.replicate, bucket.shard_elements);
  }
  int64_t bytes = 0;
  for (const auto& [group, elements] : largest)
    bytes += std::min(elements * BytesOf(DType::kFp32), kMaxTcpReceivedBytes);
  return bytes;
}

// Free blocks of the caching allocator that are too small for the next request. Only activations and
// temporaries are allocated during a step, and equal layers reuse each other's blocks.
constexpr int64_t kFragmentationDivisor = 20;

// Arena bytes by purpose.
struct ArenaShares {
  int64_t reduce = 0;  // Gradients in flight, including receive buffers.
  int64_t replica = 0;
  int64_t gather = 0;
  int64_t state = 0;  // Offloaded optimizer state in flight.
};

int64_t BytesOfKind(const Program& program, BufferKind kind) {
  int64_t bytes = 0;
  for (const Buffer& buffer : program.buffers) bytes += buffer.kind == kind ? buffer.bytes : 0;
  return bytes;
}

// Maximum live gathered bytes, as in the step's picture (simulate.h).
int64_t MostGathered(const Program& program) {
  std::vector<int64_t> changes(program.instructions.size() + 1);
  for (const Buffer& buffer : program.buffers) {
    if (buffer.kind != BufferKind::kGathered) continue;
    for (const Buffer::Interval& live : buffer.live) {
      changes[live.born] += buffer.bytes;
      changes[live.dies + 1] -= buffer.bytes;
    }
  }
  int64_t now = 0, most = 0;
  for (const int64_t change : changes) {
    now += change;
    most = std::max(most, now);
  }
  return most;
}

// Gather and reduce buffers share arena bytes at different times. Whole gradients and replicas share with
// nothing. The rest is attributed to gathers up to their live maximum, and the remainder to reductions.
ArenaShares SharesOf(const Spec& spec, const Program& program) {
  ArenaShares shares;
  shares.replica = BytesOfKind(program, BufferKind::kReplica);
  shares.state = program.state_bytes;
  const int64_t rest = program.arena_bytes - shares.replica - shares.state;
  if (spec.shards_grads()) {
    shares.gather = MostGathered(program);
    shares.reduce = rest - shares.gather;
  } else {
    shares.reduce = BytesOfKind(program, BufferKind::kReduce);
    shares.gather = rest - shares.reduce;
  }
  return shares;
}

// Bytes of a unit's buckets: gathered, and as gradients in flight including receive buffers.
struct UnitBytes {
  int64_t gathered = 0;
  int64_t reduced = 0;
};

std::vector<UnitBytes> BytesByUnit(const Spec& spec, const Layout& layout) {
  std::vector<UnitBytes> bytes(layout.units.size());
  for (const Bucket& bucket : layout.buckets) {
    bytes[bucket.unit].gathered += bucket.gather_buffer_bytes();
    if (!bucket.trainable) continue;
    const bool narrow = bucket.types.grad_comm != DType::kFp32;
    bytes[bucket.unit].reduced +=
        bucket.grad_comm_bytes() + (narrow ? bucket.grad_comm_bytes() + SumBytes(spec, bucket) : 0);
  }
  return bytes;
}

// Gathered bytes while a unit computes, if buckets are released: its own, its lender's, and those of the next
// units (`step` apart) that prefetch allows.
int64_t GatheredBeside(const Spec& spec, const Layout& layout, const std::vector<UnitBytes>& bytes, int unit,
                       int step) {
  const int lender = layout.units[unit].borrows;
  int64_t waiting = 0;
  for (int next = unit + step; next >= 0 && next < static_cast<int>(bytes.size()); next += step) {
    if (waiting + bytes[next].gathered > spec.prefetch_bytes) break;
    waiting += bytes[next].gathered;
  }
  return bytes[unit].gathered + (lender < 0 ? 0 : bytes[lender].gathered) + waiting;
}

// Closed form: the pass with the most live bytes. Sharded gradients are written while those of the previous
// unit (in backward order) are in flight; a lender's wait until its own backward.
ArenaShares EstimateShares(const Spec& spec, const Layout& layout) {
  const std::vector<UnitBytes> bytes = BytesByUnit(spec, layout);
  ArenaShares shares;
  int64_t gathered = 0, reduced = 0;
  int lender = -1;
  for (const UnitBytes& unit : bytes) {
    gathered += unit.gathered;
    reduced += unit.reduced;
  }
  for (const Bucket& bucket : layout.buckets) {
    if (bucket.pieces > 1) shares.replica += bucket.replica_bytes();
  }
  shares.state = StagingCapacity(layout);
  for (const UnitLayout& unit : layout.units) lender = std::max(lender, unit.borrows);
  if (!spec.shards_grads()) {
    shares.gather = gathered;
    shares.reduce = reduced;
    return shares;
  }
  const auto at = [&](int64_t gather, int64_t reduce) {
    if (gather + reduce <= shares.gather + shares.reduce) return;
    shares.gather = gather;
    shares.reduce = reduce;
  };
  const int last = static_cast<int>(bytes.size()) - 1;
  const bool again = spec.micro_batches_per_step() > 1;
  int64_t left = gathered;  // Minus units past their last use.
  const auto beside = [&](int unit, int step) {
    if (!spec.keeps_gathered()) return GatheredBeside(spec, layout, bytes, unit, step);
    return again || !spec.shards_params() ? gathered : left;
  };
  for (int u = last; u >= 0; --u) {
    if (u < last && u + 1 != lender) left -= bytes[u + 1].gathered;
    const int before = u < last ? u + 1 : again ? 0 : u;
    int64_t reduce = bytes[u].reduced + (before == u ? 0 : bytes[before].reduced);
    if (lender >= 0 && u != lender && before != lender) reduce += bytes[lender].reduced;
    at(beside(u, -1), reduce);
    // The last two reductions of a micro-batch overlap the next forward.
    if (again && u < last) at(beside(u, 1), bytes.front().reduced + bytes[std::min(1, last)].reduced);
  }
  return shares;
}

struct ComputePeak {
  int64_t activations = 0;
  int64_t workspace = 0;
  std::string unit;
};

// Stage transfer buffers in addition to saved activations: input, output, and outgoing gradients.
constexpr int64_t kStageTransferHidden = 3 * kStageTransferSlots;

// Saved activations of units [begin, end) that are not offloaded. Offloads in flight are counted by the next
// function.
int64_t KeptBy(const Spec& spec, const ModelFacts& model, int begin, int end) {
  int64_t kept = 0;
  for (int u = begin; u < end; ++u) {
    if (!OffloadsActivations(spec, model, u)) kept += SavedBytesOf(spec, model, u);
  }
  return kept;
}

// Maximum bytes of earlier units in flight to or from host memory while `unit` runs. An offloaded `unit` is
// one of the kStagedLayers itself.
int64_t StagedBeside(const Spec& spec, const ModelFacts& model, int unit) {
  if (spec.offloaded_layers == 0) return 0;
  size_t places = kStagedLayers - (OffloadsActivations(spec, model, unit) ? 1 : 0);
  int64_t bytes = 0;
  for (int u = unit - 1; u >= 0 && places > 0; --u) {
    if (!OffloadsActivations(spec, model, u)) continue;
    bytes += SavedBytesOf(spec, model, u);
    --places;
  }
  return bytes;
}

int64_t DeferredBy(const ModelFacts& model, int begin, int end) {
  int64_t bytes = 0;
  for (int u = begin; model.stage.defers_grads && u < end; ++u) bytes += model.units[u].deferred_bytes;
  return bytes;
}

// Per run of a stage: the maximum saved (or deferred) by turns through any run when a turn through this one
// starts.
std::vector<int64_t> KeptBeside(const Spec& spec, const ModelFacts& model) {
  const StagePlace& stage = model.stage;
  if (stage.count == 1) return {0};
  std::vector<int64_t> by_run, beside(stage.runs.size(), 0);
  for (const UnitRun& run : stage.runs) by_run.push_back(KeptBy(spec, model, run.begin, run.end));
  int64_t kept = kStageTransferHidden * stage.hidden_elements * BytesOf(stage.hidden_type);
  const int64_t deferred = DeferredBy(model, stage.runs[0].begin, stage.runs[0].end);
  for (const Turn& turn : TrainingTurns(static_cast<int>(spec.micro_batches_per_step()), stage)) {
    if (turn.leg == Leg::kBackward) kept -= by_run[turn.run];
    if (turn.leg == Leg::kWeights) kept -= deferred;
    if (turn.leg != Leg::kWeights) beside[turn.run] = std::max(beside[turn.run], kept);
    if (turn.leg == Leg::kForward) kept += by_run[turn.run];
    if (turn.leg == Leg::kBackward) kept += deferred;
  }
  return beside;
}

// With one stage, one micro-batch is in flight: its backward frees what its forward saved. With several
// stages, more forwards have run.
ComputePeak PeakOfCompute(const Spec& spec, const ModelFacts& model) {
  ComputePeak peak;
  const std::vector<int64_t> beside = KeptBeside(spec, model);
  for (size_t r = 0; r < beside.size(); ++r) {
    const auto end = r + 1 < beside.size() ? model.stage.runs[r].end : static_cast<int>(model.units.size());
    // Includes earlier units, and gradients deferred by this unit and later ones.
    int64_t kept = beside[r] + DeferredBy(model, model.stage.runs[r].begin, end);
    for (int u = model.stage.runs[r].begin; u < end; ++u) {
      const UnitFacts& unit = model.units[u];
      // Recompute rebuilds all activations of the unit (with selective recompute not all at the same time).
      const int64_t activations = unit.saved_bytes.none + kept + StagedBeside(spec, model, u);
      if (activations + unit.workspace_bytes > peak.activations + peak.workspace)
        peak = {activations, unit.workspace_bytes, unit.name};
      kept += KeptBy(spec, model, u, u + 1) - DeferredBy(model, u, u + 1);
    }
  }
  return peak;
}

struct OwnedBytes {
  int64_t main = 0;
  int64_t base = 0;            // Part of main: frozen weights of a LoRA job.
  int64_t moments = 0;         // Trainable parameters only.
  int64_t offloaded = 0;       // Offloaded part of main and moments.
  int64_t gradient_shard = 0;  // Trainable parameters only.
  int64_t received = 0;        // Gradients received for tied-embedding replicas.
  int64_t parts = 1;           // Maximum number of parts of a bucket.
};

OwnedBytes OwnedBy(const Spec& spec, const Layout& layout) {
  OwnedBytes owned;
  for (const Bucket& bucket : layout.buckets) {
    const int64_t main = bucket.main_bytes();
    owned.main += main;
    if (bucket.of_base) owned.base += main;
    owned.parts = std::max(owned.parts, bucket.owners());
    if (!bucket.trainable) continue;
    owned.moments += spec.optimizer.moments() * bucket.main_elements * BytesOf(bucket.types.moment);
    owned.offloaded += bucket.offloaded_bytes();
    for (const StatePart& part : bucket.offloaded)
      (part.moment < 0 ? owned.main : owned.moments) -= part.bytes;
    owned.gradient_shard += bucket.shard_elements * BytesOf(bucket.types.gradient);
    if (bucket.tied_replica == TiedReplica::kOriginal)
      owned.received += bucket.main_elements * BytesOf(bucket.types.gradient);
  }
  return owned;
}

std::string OptimizerNote(const Spec& spec, int64_t offloaded_bytes) {
  const int moments = spec.optimizer.moments();
  if (offloaded_bytes > 0)
    return absl::StrCat(HumanBytes(offloaded_bytes), " in host memory; device buffers for two buckets");
  if (moments == 0) return "SGD without momentum has no state";
  const char* what = moments == 2 ? "AdamW's two moments" : "SGD's momentum";
  return absl::StrCat(what, " in ", NameOf(spec.precision.moments), ", trainable parameters only");
}

std::string MainNote(const Spec& spec, const OwnedBytes& owned) {
  if (spec.lora.enabled()) {
    return absl::StrCat("frozen weights in ", spec.lora.nf4 ? "nf4 and " : "", NameOf(spec.precision.compute),
                        ": ", HumanBytes(owned.base),
                        "; adapters in fp32: ", HumanBytes(owned.main - owned.base));
  }
  const bool split_fp32 = owned.offloaded > 0 && LayoutOptionsOf(spec).types.split_fp32;
  const std::string part = owned.parts == 1 ? "the model" : absl::StrCat("1/", owned.parts, " of the model");
  return absl::StrCat(
      part, split_fp32 ? " in bf16; the low 16 bits of trainable parameters are in host memory" : " in fp32");
}

// no_shard updates from the whole gradients; `optim` reduces them into a separate shard.
MemoryComponent Gradients(const Spec& spec, const OwnedBytes& owned, int64_t whole_bytes) {
  const int64_t shard = owned.gradient_shard;
  if (spec.strategy == Strategy::kNoShard) return {"gradients", whole_bytes, "whole in fp32"};
  if (!spec.shards_grads()) {
    return {"gradients", whole_bytes + shard,
            absl::StrCat("whole in fp32, and this rank's shard in ", NameOf(spec.precision.main_grads))};
  }
  return {"gradients", shard, absl::StrCat("this rank's shard in ", NameOf(spec.precision.main_grads))};
}

std::string ActivationNote(const Spec& spec, const ModelFacts& model, const std::string& unit) {
  std::string text = absl::StrCat("saved for backward, peak at ", unit);
  const int64_t blocks = BlocksOf(model), away = std::min(spec.offloaded_layers, blocks);
  if (away > 0) absl::StrAppend(&text, "; ", away, " of ", blocks, " layers offloaded to host memory");
  if (spec.recompute == Recompute::kNone) return text;
  int64_t layers = 0;
  for (size_t u = 0; u < model.units.size(); ++u)
    layers += RecomputeOf(spec, model, static_cast<int>(u)) == spec.recompute ? 1 : 0;
  const bool full = spec.recompute == Recompute::kFull;
  const char* kind = full ? "full" : "selective";
  if (layers == blocks) return absl::StrCat(text, "; recompute ", kind, " on all layers");
  return absl::StrCat(text, "; recompute ", kind, " on ", layers, " of ", blocks, " layers",
                      full ? ", selective on the rest" : "");
}

StepMemory MemoryWith(const ArenaShares& arena, const Spec& spec, const ModelFacts& model,
                      const Layout& layout) {
  const bool cuda = spec.device == DeviceKind::kCuda;
  const ComputePeak compute = PeakOfCompute(spec, model);
  const OwnedBytes owned = OwnedBy(spec, layout);
  const int64_t transient = compute.activations + compute.workspace;
  const bool whole = !spec.shards_grads();
  const auto* package = std::get_if<PackageConfig>(&spec.model);
  const int64_t buffers = package == nullptr ? 0 : package->buffer_bytes;
  MemoryComponent gradients = Gradients(spec, owned, arena.reduce);
  gradients.bytes += owned.received;
  StepMemory memory;
  memory.components = {
      {"main_params", owned.main, MainNote(spec, owned)},
      {"optimizer", owned.moments + arena.state, OptimizerNote(spec, owned.offloaded)},
      gradients,
      {"replica", arena.replica, "arena: shards in compute precision, gathered between replicas"},
      {"gather_buffers", arena.gather, "arena: maximum gathered at one time"},
      {"reduce_buffers", whole ? 0 : arena.reduce,
       whole ? "none: gradients are unsharded" : "arena: gradients being reduced"},
      {"activations", compute.activations, ActivationNote(spec, model, compute.unit)},
      {"workspace", compute.workspace, absl::StrCat("estimate: temporaries of ", compute.unit)},
      {"library", (cuda ? kCudaLibraryBytes : TcpBytes(layout)) + buffers,
       absl::StrCat(cuda ? "estimate: workspace of cuBLAS and cuBLASLt" : "receive buffers for fp32 sums",
                    buffers > 0 ? ", and buffers of the model" : "")},
      {"fragmentation", cuda ? transient / kFragmentationDivisor : 0,
       cuda ? "estimate: 5% of activations and workspace" : "none on CPU"},
  };
  for (const MemoryComponent& component : memory.components) memory.peak_bytes += component.bytes;
  memory.offloaded_bytes = owned.offloaded;
  for (size_t u = 0; u < model.units.size(); ++u)
    memory.offloaded_bytes += OffloadedBytes(spec, model, static_cast<int>(u));
  memory.host_bytes = SnapshotBytes(spec, layout, {spec.mesh, /*rank=*/0}) + memory.offloaded_bytes;
  return memory;
}

std::optional<RecomputeChoice> CheapestWith(const ArenaShares& arena, const Spec& spec,
                                            const ModelFacts& model, const Layout& layout,
                                            std::optional<int64_t> only_layers) {
  Spec tried = spec;
  const auto fits = [&](Recompute recompute, int64_t layers) {
    tried.recompute = recompute;
    tried.recompute_layers = layers;
    return MemoryWith(arena, tried, model, layout).peak_bytes <= spec.memory_budget_bytes;
  };
  const int64_t blocks = BlocksOf(model);
  if (fits(Recompute::kNone, 0)) return RecomputeChoice{Recompute::kNone, 0};
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    int64_t enough = only_layers.value_or(blocks);
    if (!fits(recompute, enough)) continue;
    // Memory never grows with more recomputed layers.
    int64_t too_few = only_layers.has_value() ? enough - 1 : 0;
    while (too_few + 1 < enough) {
      const int64_t middle = too_few + (enough - too_few) / 2;
      (fits(recompute, middle) ? enough : too_few) = middle;
    }
    return RecomputeChoice{recompute, enough};
  }
  return std::nullopt;
}

}  // namespace

int64_t StepMemory::Of(absl::string_view component) const {
  for (const MemoryComponent& c : components) {
    if (c.name == component) return c.bytes;
  }
  return 0;
}

LargestUnit FindLargestUnit(const Layout& layout) {
  LargestUnit largest;
  for (const UnitLayout& unit : layout.units) {
    int64_t bytes = 0;
    for (const int bucket : unit.buckets) bytes += layout.buckets[bucket].gathered_bytes();
    largest.all_bytes += bytes;
    if (bytes <= largest.bytes) continue;
    largest.name = unit.name;
    largest.bytes = bytes;
  }
  return largest;
}

StepMemory PlanMemory(const Spec& spec, const ModelFacts& model, const Layout& layout,
                      const Program& program) {
  return MemoryWith(SharesOf(spec, program), spec, model, layout);
}

StepMemory EstimateMemory(const Spec& spec, const ModelFacts& model, const Layout& layout) {
  return MemoryWith(EstimateShares(spec, layout), spec, model, layout);
}

std::optional<RecomputeChoice> CheapestRecompute(const Spec& spec, const ModelFacts& model,
                                                 const Layout& layout, const Program& program,
                                                 std::optional<int64_t> only_layers) {
  return CheapestWith(SharesOf(spec, program), spec, model, layout, only_layers);
}

std::optional<RecomputeChoice> EstimateRecompute(const Spec& spec, const ModelFacts& model,
                                                 const Layout& layout, std::optional<int64_t> only_layers) {
  return CheapestWith(EstimateShares(spec, layout), spec, model, layout, only_layers);
}

}  // namespace fsdpd
