// What a gather fills of one bucket, and units read: numbers, and of what travels in FP8 the scales behind
// them. Rows are never cut, so each rank rounds its own shard, and what travels is rounded already.
//
// Thread safety: none; the lanes order who touches what.
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

  // In so many bytes of zeros: padding is never written, and autograd may look at it.
  GatheredBucket(const Bucket& bucket, const at::Tensor& bytes);

  // Of a bucket that is read in place: what is stored.
  static GatheredBucket InPlace(const Bucket& bucket, const at::Tensor& stored);

  bool defined() const { return values_.defined(); }
  BoundParam Param(const ParamSlot& slot) const;

  // Into a shard of it, from what is stored of that or published.
  void Write(const BucketRange& shard, const at::Tensor& from) const;

  // Everyone's shards.
  absl::Status Gather(const BucketRange& own, Communicator* group) const;

 private:
  const Bucket* bucket_ = nullptr;  // The plan's, which outlives this.
  at::Tensor values_;               // [bucket_elements]
  at::Tensor scales_;               // [Bucket::scales()] fp32; undefined where there is no FP8.
};

}  // namespace fsdpd
