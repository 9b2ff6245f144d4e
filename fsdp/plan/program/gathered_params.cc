#include "fsdp/plan/program/gathered_params.h"

#include <limits>
#include <utility>

#include "base/check.h"

namespace fsdpd {

GatheredParams::GatheredParams(const Spec& spec, const Layout& layout, Schedule passes, bool releases,
                               ProgramWriter* writer)
    : layout_(layout),
      writer_(writer),
      passes_(std::move(passes)),
      releases_(releases),
      residencies_(ListResidencies(layout, passes_, spec.keeps_gathered())),
      ending_(passes_.size()),
      publish_(layout.buckets.size(), -1),
      last_gather_(layout.buckets.size(), -1),
      first_reader_(layout.buckets.size(), -1) {
  for (size_t i = 0; i < residencies_.size(); ++i) {
    ending_[residencies_[i].last_pass].push_back(static_cast<int>(i));
  }
  std::vector<int64_t> bytes;
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    bytes.push_back(writer->BytesOfBuffer(writer->Find(BufferKind::kGathered, static_cast<int>(b))));
  }
  const int64_t bound = spec.keeps_gathered() ? std::numeric_limits<int64_t>::max() : spec.prefetch_bytes;
  gathers_ = PlanGathers(layout, residencies_, bytes, bound);
}

void GatheredParams::GatherReplica() {
  for (size_t i = 0; i < layout_.buckets.size(); ++i) {
    if (layout_.buckets[i].pieces == 1) continue;
    const int b = static_cast<int>(i);
    Instruction gather_replica{Op::kGatherReplica, layout_.buckets[i].unit, b};
    gather_replica.uses = {{writer_->Find(BufferKind::kReplica, b), Access::kWrite}};
    publish_[i] = first_reader_[i] = writer_->Append(std::move(gather_replica), {});
  }
}

void GatheredParams::GatherReady(int pass) {
  for (; next_gather_ < gathers_.size() && gathers_[next_gather_].from_pass <= pass; ++next_gather_) {
    Gather(gathers_[next_gather_]);
  }
}

void GatheredParams::Gather(const PlannedGather& planned) {
  const int b = planned.bucket;
  Instruction gather{Op::kGather, layout_.buckets[b].unit, b};
  const int replica = writer_->Find(BufferKind::kReplica, b);
  if (replica >= 0) gather.uses.push_back({replica, Access::kRead});
  gather.uses.push_back({writer_->Find(BufferKind::kGathered, b), Access::kWrite});
  last_gather_[b] = writer_->Append(std::move(gather), {publish_[b], writer_->last(LaneId::kCompute)});
  if (first_reader_[b] < 0) first_reader_[b] = last_gather_[b];
}

std::vector<BufferUse> GatheredParams::Reads(int pass) const {
  std::vector<BufferUse> uses;
  for (const int read : UnitsReadBy(layout_, passes_[pass])) {
    for (const int b : layout_.units[read].buckets) {
      uses.push_back({writer_->Find(BufferKind::kGathered, b), Access::kRead});
    }
  }
  return uses;
}

std::vector<int> GatheredParams::Gathers(int pass) const {
  std::vector<int> gathers;
  for (const int read : UnitsReadBy(layout_, passes_[pass])) {
    for (const int b : layout_.units[read].buckets) gathers.push_back(last_gather_[b]);
  }
  return gathers;
}

void GatheredParams::ReleaseAfter(int pass) {
  for (const int residency : ending_[pass]) End(residencies_[residency]);
}

void GatheredParams::End(const Residency& residency) {
  int end = writer_->last(LaneId::kCompute);
  if (releases_) {
    Instruction release{Op::kRelease, residency.unit};
    for (const int b : layout_.units[residency.unit].buckets) {
      release.uses.push_back({writer_->Find(BufferKind::kGathered, b), Access::kRead});
    }
    end = writer_->Append(std::move(release), {});
  }
  for (const int b : layout_.units[residency.unit].buckets) {
    const int buffer = writer_->Find(BufferKind::kGathered, b);
    writer_->Live(buffer, last_gather_[b], end);
    if (releases_) writer_->Occupy(buffer, last_gather_[b], end);
  }
}

void GatheredParams::Finish() {
  FSDPD_CHECK(next_gather_ == gathers_.size());
  for (size_t i = 0; i < layout_.buckets.size(); ++i) {
    const int b = static_cast<int>(i);
    if (!releases_) writer_->OccupyAlways(writer_->Find(BufferKind::kGathered, b));
    const int replica = writer_->Find(BufferKind::kReplica, b);
    if (replica < 0) continue;
    writer_->Live(replica, publish_[b], last_gather_[b]);
    writer_->OccupyAlways(replica);
  }
}

}  // namespace fsdpd
