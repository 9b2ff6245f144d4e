#include "fsdp/plan/program/program.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

#include "fsdp/plan/program/offsets.h"

namespace fsdpd {

const char* NameOf(BufferKind kind) {
  constexpr const char* kNames[kBufferKinds] = {"gathered", "reduce", "wire", "replica", "state"};
  return kNames[static_cast<size_t>(kind)];
}

int64_t SumBytes(const Spec& spec, const Bucket& bucket) {
  const bool set_in_place = bucket.types.gradient == DType::kFp32 && spec.micro_batches_per_step() == 1;
  if (bucket.types.grad_comm == DType::kFp32 || set_in_place || SumsInOneKernel(spec, bucket)) return 0;
  return RoundUp(bucket.shard_elements * BytesOf(DType::kFp32), kBufferAlignBytes);
}

int64_t StagingCapacity(const Layout& layout) {
  int64_t most = 0, before = 0;
  for (const Bucket& bucket : layout.buckets) {
    if (bucket.offloaded.empty()) continue;
    most = std::max(most, before + bucket.offloaded_bytes());
    before = bucket.offloaded_bytes();
  }
  return most;
}

namespace {

// "layer.3", or "layer.3/1" for a bucket of a unit with several.
std::string NameOfSubject(const Instruction& i, const Layout& layout) {
  if (i.unit < 0 || i.unit >= static_cast<int>(layout.units.size())) return "";
  const UnitLayout& unit = layout.units[i.unit];
  const auto bucket = std::find(unit.buckets.begin(), unit.buckets.end(), i.bucket);
  if (i.bucket < 0 || (unit.buckets.size() == 1 && bucket != unit.buckets.end())) return unit.name;
  if (bucket == unit.buckets.end()) return absl::StrCat(unit.name, "/bucket ", i.bucket);
  return absl::StrCat(unit.name, "/", bucket - unit.buckets.begin());
}

}  // namespace

std::string Describe(const Program& program, const Layout& layout, int instruction) {
  const Instruction& i = program.instructions[instruction];
  std::string text = absl::StrCat("#", instruction, " ", NameOf(i.op));
  const std::string subject = NameOfSubject(i, layout);
  if (!subject.empty()) absl::StrAppend(&text, " ", subject);
  if (i.micro_batch >= 0) absl::StrAppend(&text, " mb ", i.micro_batch);
  if (i.accumulate) absl::StrAppend(&text, " adding");
  absl::StrAppend(&text, " on ", NameOf(i.lane));
  const char* separator = " after ";
  for (const int other : i.after) {
    absl::StrAppend(&text, separator, "#", other);
    separator = ", ";
  }
  for (const int other : i.after_previous) {
    absl::StrAppend(&text, separator, "previous #", other);
    separator = ", ";
  }
  return text;
}

}  // namespace fsdpd
