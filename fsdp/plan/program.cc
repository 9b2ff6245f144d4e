#include "fsdp/plan/program.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "fsdp/plan/offsets.h"
#include "fsdp/plan/program_hash.h"

namespace fsdpd {
namespace {

// One Reduce runs beside the next unit's Backward, which needs a second buffer; a third would buy nothing
// while the reduce lane keeps up, and costs a unit's gradient in fp32.
constexpr int kReducesInFlight = 2;

// Appends instructions, leaves out dependencies that others imply, and notes how long each buffer is
// occupied.
class Writer {
 public:
  Writer(const Spec& spec, const Layout& layout) {
    for (size_t u = 0; u < layout.units.size(); ++u) {
      const int64_t elements = layout.units[u].bucket_elements;
      AddBuffer(BufferKind::kGathered, static_cast<int>(u), elements * BytesOf(spec.compute));
      AddBuffer(BufferKind::kReduce, static_cast<int>(u), elements * BytesOf(DType::kFp32));
    }
  }

  static int Gathered(int unit) { return 2 * unit; }
  static int Reduced(int unit) { return 2 * unit + 1; }

  int next() const { return static_cast<int>(program_.instructions.size()); }
  int64_t BytesOfBuffer(int buffer) const { return program_.buffers[buffer].bytes; }

  // `after` may name -1 (nothing), the own lane, and what is implied by another: only what is needed is kept.
  int Append(Instruction instruction, std::vector<int> after) {
    const auto lane = static_cast<size_t>(instruction.lane);
    Done done = lane_done_[lane];
    std::sort(after.rbegin(), after.rend());
    for (const int other : after) {
      if (other < 0 || Knows(done, other)) continue;
      instruction.after.push_back(other);
      for (size_t i = 0; i < kLanes; ++i) done[i] = std::max(done[i], done_[other][i]);
    }
    std::sort(instruction.after.begin(), instruction.after.end());
    done[lane] = next();
    lane_done_[lane] = done;
    done_.push_back(done);
    program_.instructions.push_back(std::move(instruction));
    return next() - 1;
  }

  void Live(int buffer, int born, int dies) { program_.buffers[buffer].live.push_back({born, dies}); }
  void Occupy(int buffer, int begin, int end) { occupied_.push_back({buffer, begin, end}); }

  Program Finish(const Spec& spec, const Layout& layout) {
    std::vector<int64_t> bytes;
    for (const Buffer& buffer : program_.buffers) bytes.push_back(buffer.bytes);
    const Offsets offsets = AssignOffsets(bytes, occupied_);
    for (size_t i = 0; i < bytes.size(); ++i) program_.buffers[i].offset = offsets.offset[i];
    program_.arena_bytes = offsets.arena_bytes;
    program_.live_peak_bytes = offsets.live_peak_bytes;
    program_.hash = HashProgram(spec, layout, program_);
    return std::move(program_);
  }

 private:
  // Per lane: the last instruction known to be complete.
  using Done = std::array<int, kLanes>;

  void AddBuffer(BufferKind kind, int unit, int64_t bytes) {
    program_.buffers.push_back({kind, unit, bytes, 0, {}});
  }

  bool Knows(const Done& done, int index) const {
    return done[static_cast<size_t>(program_.instructions[index].lane)] >= index;
  }

  Program program_;
  std::vector<Occupancy> occupied_;
  std::vector<Done> done_;
  std::array<Done, kLanes> lane_done_{Done{-1, -1, -1}, Done{-1, -1, -1}, Done{-1, -1, -1}};
};

void NormAndUpdates(Writer* writer, int units, bool update_reads_bucket) {
  const int norm = writer->Append({Op::kNorm, -1, -1, LaneId::kReduce, false, {}, {}}, {});
  for (int u = 0; u < units; ++u) {
    Instruction update{Op::kUpdate, u, -1, LaneId::kCompute, false, {}, {}};
    if (update_reads_bucket) update.uses = {{Writer::Reduced(u), Access::kRead}};
    writer->Append(std::move(update), {norm});
  }
}

// optim_grads_params. The step is a row of residencies: a unit is gathered, used and released.
class ShardedStep {
 public:
  ShardedStep(const Spec& spec, const Layout& layout)
      : writer_(spec, layout), units_(static_cast<int>(layout.units.size())), last_reduce_of_(units_, -1) {
    ListResidencies(static_cast<int>(spec.micro_batches_per_step()));
    AllowGathers(spec.prefetch_bytes);
  }

  Program Compile(const Spec& spec, const Layout& layout) {
    for (size_t i = 0; i < residencies_.size(); ++i) {
      GatherWhatMayStart(i);
      Run(residencies_[i]);
    }
    NormAndUpdates(&writer_, units_, /*update_reads_bucket=*/false);
    OccupyReduceBuffers();
    return writer_.Finish(spec, layout);
  }

 private:
  struct Residency {
    int unit = 0;
    int micro_batch = 0;
    bool forward = false;
    bool backward = false;
    // The gather may start once every residency before this one is released.
    size_t compute_at = 0;
    int gather = -1;
    int release = -1;
  };

  struct InFlight {
    int unit = 0;
    int backward = 0;
    int reduce = 0;
  };

  void ListResidencies(int micro_batches) {
    const int last = units_ - 1;
    for (int m = 0; m < micro_batches; ++m) {
      for (int u = 0; u < last; ++u) residencies_.push_back({u, m, true, false});
      residencies_.push_back({last, m, true, true});
      for (int u = last - 1; u >= 0; --u) residencies_.push_back({u, m, false, true});
    }
  }

  // With compute at residency j, j+1 .. k may wait gathered when their bytes are within the bound.
  void AllowGathers(int64_t prefetch_bytes) {
    std::vector<int> previous_of(units_, -1);
    int64_t waiting = 0;
    size_t j = 0;
    for (size_t k = 0; k < residencies_.size(); ++k) {
      const int unit = residencies_[k].unit;
      if (k > 0) waiting += Bytes(k);
      for (; j < k && waiting > prefetch_bytes; ++j) waiting -= Bytes(j + 1);
      const auto bucket_free = static_cast<size_t>(previous_of[unit] + 1);
      residencies_[k].compute_at = std::max(j, bucket_free);
      previous_of[unit] = static_cast<int>(k);
    }
  }

  int64_t Bytes(size_t residency) const {
    return writer_.BytesOfBuffer(Writer::Gathered(residencies_[residency].unit));
  }

  // Listed as early as they may start, so that whoever submits in list order never holds a gather back.
  void GatherWhatMayStart(size_t compute_at) {
    for (; next_gather_ < residencies_.size(); ++next_gather_) {
      Residency& r = residencies_[next_gather_];
      if (r.compute_at > compute_at) return;
      const int released = r.compute_at == 0 ? -1 : residencies_[r.compute_at - 1].release;
      r.gather = writer_.Append(
          {Op::kGather, r.unit, -1, LaneId::kGather, false, {}, {{Writer::Gathered(r.unit), Access::kWrite}}},
          {released});
    }
  }

  void Run(Residency& r) {
    const BufferUse params{Writer::Gathered(r.unit), Access::kRead};
    if (r.forward) {
      writer_.Append({Op::kForward, r.unit, r.micro_batch, LaneId::kCompute, false, {}, {params}},
                     {r.gather});
    }
    const int backward = r.backward ? Backward(r, params) : -1;
    r.release = writer_.Append({Op::kRelease, r.unit, -1, LaneId::kCompute, false, {}, {params}}, {});
    writer_.Live(params.buffer, r.gather, r.release);
    writer_.Occupy(params.buffer, r.gather, r.release);
    if (r.backward) Reduce(r, backward);
  }

  int Backward(const Residency& r, BufferUse params) {
    const auto ago = static_cast<size_t>(kReducesInFlight);
    const int slot_free = reduces_.size() >= ago ? reduces_[reduces_.size() - ago].reduce : -1;
    return writer_.Append({Op::kBackward,
                           r.unit,
                           r.micro_batch,
                           LaneId::kCompute,
                           false,
                           {},
                           {params, {Writer::Reduced(r.unit), Access::kWrite}}},
                          {r.gather, slot_free, last_reduce_of_[r.unit]});
  }

  void Reduce(const Residency& r, int backward) {
    const int bucket = Writer::Reduced(r.unit);
    const int reduce = writer_.Append({Op::kReduce,
                                       r.unit,
                                       r.micro_batch,
                                       LaneId::kReduce,
                                       r.micro_batch > 0,
                                       {},
                                       {{bucket, Access::kRead}, {bucket, Access::kWrite}}},
                                      {backward});
    writer_.Live(bucket, backward, reduce);
    reduces_.push_back({r.unit, backward, reduce});
    last_reduce_of_[r.unit] = reduce;
  }

  // A reduce buffer's bytes are free for compute only where compute waits for the Reduce: before the Backward
  // that is kReducesInFlight further on. Narrower occupancy would be legal and would serialise the lanes.
  void OccupyReduceBuffers() {
    for (size_t i = 0; i < reduces_.size(); ++i) {
      const size_t waits = i + kReducesInFlight;
      const int end = waits < reduces_.size() ? reduces_[waits].backward - 1 : writer_.next() - 1;
      writer_.Occupy(Writer::Reduced(reduces_[i].unit), reduces_[i].backward, end);
    }
  }

  Writer writer_;
  const int units_;
  std::vector<Residency> residencies_;
  size_t next_gather_ = 0;
  std::vector<InFlight> reduces_;
  std::vector<int> last_reduce_of_;
};

Program CompileNoShard(const Spec& spec, const Layout& layout) {
  Writer writer(spec, layout);
  const int units = static_cast<int>(layout.units.size());
  const int micro_batches = static_cast<int>(spec.micro_batches_per_step());
  std::vector<int> gather(units), first_backward(units), last_backward(units);
  for (int u = 0; u < units; ++u) {
    gather[u] = writer.Append(
        {Op::kGather, u, -1, LaneId::kCompute, false, {}, {{Writer::Gathered(u), Access::kWrite}}}, {});
  }
  for (int m = 0; m < micro_batches; ++m) {
    for (int u = 0; u < units; ++u) {
      writer.Append({Op::kForward, u, m, LaneId::kCompute, false, {}, {{Writer::Gathered(u), Access::kRead}}},
                    {});
    }
    for (int u = units - 1; u >= 0; --u) {
      const int bucket = Writer::Reduced(u);
      Instruction backward{
          Op::kBackward, u, m, LaneId::kCompute, m > 0, {}, {{Writer::Gathered(u), Access::kRead}}};
      if (m > 0) backward.uses.push_back({bucket, Access::kRead});
      backward.uses.push_back({bucket, Access::kWrite});
      last_backward[u] = writer.Append(std::move(backward), {});
      if (m == 0) first_backward[u] = last_backward[u];
      if (m < micro_batches - 1) continue;
      writer.Append({Op::kReduce,
                     u,
                     m,
                     LaneId::kReduce,
                     false,
                     {},
                     {{bucket, Access::kRead}, {bucket, Access::kWrite}}},
                    {last_backward[u]});
    }
  }
  const int first_update = writer.next() + 1;
  NormAndUpdates(&writer, units, /*update_reads_bucket=*/true);
  for (int u = 0; u < units; ++u) {
    writer.Live(Writer::Gathered(u), gather[u], last_backward[u]);
    writer.Live(Writer::Reduced(u), first_backward[u], first_update + u);
    // Everything is on every rank for the whole step: no bytes are shared.
    writer.Occupy(Writer::Gathered(u), 0, writer.next() - 1);
    writer.Occupy(Writer::Reduced(u), 0, writer.next() - 1);
  }
  return writer.Finish(spec, layout);
}

}  // namespace

const char* NameOf(Op op) {
  switch (op) {
    case Op::kGather:
      return "Gather";
    case Op::kForward:
      return "Forward";
    case Op::kRelease:
      return "Release";
    case Op::kBackward:
      return "Backward";
    case Op::kReduce:
      return "Reduce";
    case Op::kNorm:
      return "Norm";
    case Op::kUpdate:
      return "Update";
  }
  return "?";
}

const char* NameOf(LaneId lane) {
  switch (lane) {
    case LaneId::kCompute:
      return "compute";
    case LaneId::kGather:
      return "gather";
    case LaneId::kReduce:
      return "reduce";
  }
  return "?";
}

Program CompileProgram(const Spec& spec, const Layout& layout) {
  FSDPD_CHECK(!layout.units.empty() && spec.micro_batches_per_step() > 0);
  if (spec.strategy == Strategy::kNoShard) return CompileNoShard(spec, layout);
  return ShardedStep(spec, layout).Compile(spec, layout);
}

std::string Describe(const Program& program, const Layout& layout, int instruction) {
  const Instruction& i = program.instructions[instruction];
  std::string text = absl::StrCat("#", instruction, " ", NameOf(i.op));
  if (i.unit >= 0 && i.unit < static_cast<int>(layout.units.size())) {
    absl::StrAppend(&text, " ", layout.units[i.unit].name);
  }
  if (i.micro_batch >= 0) absl::StrAppend(&text, " mb ", i.micro_batch);
  absl::StrAppend(&text, " on ", NameOf(i.lane));
  for (size_t k = 0; k < i.after.size(); ++k) absl::StrAppend(&text, k == 0 ? " after #" : ", #", i.after[k]);
  return text;
}

}  // namespace fsdpd
