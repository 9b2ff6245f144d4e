#include "fsdp/plan/verify/verify_case.h"

#include <algorithm>

namespace fsdpd {

int VerifyCase::RunOf(int unit) const {
  int run = 0;
  while (unit >= RunEnd(run)) ++run;
  return run;
}

int64_t VerifyCase::OffloadedBytes(int bucket) const {
  const Bucket& of = layout.buckets[bucket];
  if (!spec.offload_optimizer || !of.trainable) return 0;
  const int64_t low_bytes = of.types.split_fp32 ? 2 : 0;
  return of.main_elements * (low_bytes + spec.optimizer.moments() * BytesOf(spec.precision.moments));
}

// Offloaded layer k of N is the first layer at or after fraction k/N of the layers: of all layers if all are
// offloaded, else of all but the last.
bool VerifyCase::OffloadsActivationsOf(int unit) const {
  const int64_t layers = units() - 2, layer = unit - 1;
  const int64_t away = std::min<int64_t>(spec.offloaded_layers, layers);
  if (!training() || layer < 0 || layer >= layers) return false;
  const int64_t way = away == layers ? layers : layers - 1;
  for (int64_t k = 0; k < away; ++k) {
    if ((k * way + away - 1) / away == layer) return true;
  }
  return false;
}

std::vector<int> VerifyCase::BucketsOf(int unit) const {
  std::vector<int> buckets = layout.units[unit].buckets;
  const int lender = layout.units[unit].borrows;
  if (lender >= 0) {
    buckets.insert(buckets.end(), layout.units[lender].buckets.begin(), layout.units[lender].buckets.end());
  }
  return buckets;
}

bool VerifyCase::ReadsParams(const Instruction& pass, int bucket) const {
  const bool own = layout.buckets[bucket].unit == pass.unit;
  return !own || !IsBackwardOnly(pass.op) || layout.units[pass.unit].backward_reads;
}

std::vector<int> VerifyCase::UsersOf(int bucket) const {
  const int owner = layout.buckets[bucket].unit;
  std::vector<int> users = {owner};
  for (int u = 0; u < units(); ++u) {
    if (layout.units[u].borrows == owner) users.push_back(u);
  }
  return users;
}

std::string VerifyCase::Name(int index) const {
  const Instruction& at = At(index);
  if (at.unit >= units() || at.bucket >= buckets()) return absl::StrCat("#", index, " ", NameOf(at.op));
  return Describe(program, layout, index);
}

std::string VerifyCase::BucketName(int bucket) const {
  const int unit = layout.buckets[bucket].unit;
  const std::string& name = layout.units[unit].name;
  return layout.units[unit].buckets.size() == 1 ? name : absl::StrCat(name, " (bucket ", bucket, ")");
}

std::string VerifyCase::Name(const Buffer& buffer) const {
  return absl::StrCat(NameOf(buffer.kind), " buffer of ", BucketName(buffer.bucket));
}

std::string NameOf(const VerifyCase& verified, Op op, int unit, int micro_batch) {
  std::string name = absl::StrCat(NameOf(op), " ", verified.layout.units[unit].name);
  if (micro_batch >= 0) absl::StrAppend(&name, " mb ", micro_batch);
  return name;
}

}  // namespace fsdpd
