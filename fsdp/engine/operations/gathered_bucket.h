// Gathered form of one bucket, which units read: the parameter values and, for an FP8 bucket, the scales of
// their rows. Shard boundaries never split a row, so each rank quantizes its own shard and the all-gather
// moves FP8 data. A bucket in NF4 is gathered in NF4, and then converted to the type that units read.
//
// Not thread-safe; the program's dependencies order accesses from lanes.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include "fsdp/comm/communicator.h"
#include "fsdp/model/unit/unit.h"
#include "fsdp/plan/layout/layout.h"

namespace fsdpd {

class GatheredBucket {
 public:
  GatheredBucket() = default;

  // Uses `bytes` as storage and zeroes it: padding is never written, and autograd may read it.
  GatheredBucket(const Bucket& bucket, const at::Tensor& bytes);

  // For a bucket that is not gathered: views the stored parameters.
  static GatheredBucket InPlace(const Bucket& bucket, const at::Tensor& stored);

  bool defined() const { return values_.defined(); }
  BoundParam Param(const ParamSlot& slot) const;

  // Writes one shard of the bucket, from the stored shard or the gathered replica; quantizes for FP8.
  void Write(const BucketRange& shard, const at::Tensor& from) const;

  // All-gathers the shards of all ranks.
  absl::Status Gather(const BucketRange& own, Communicator* group) const;

 private:
  const Bucket* bucket_ = nullptr;  // Owned by the plan, which must outlive this object.
  at::Tensor values_;               // [bucket_elements]
  at::Tensor scales_;               // [Bucket::scales()] fp32; undefined without FP8.
  at::Tensor blocks_;               // Bytes of the whole bucket in NF4, if it is sharded.
};

}  // namespace fsdpd
