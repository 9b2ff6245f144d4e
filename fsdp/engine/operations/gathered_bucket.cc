#include "fsdp/engine/operations/gathered_bucket.h"

#include "base/check.h"
#include "fsdp/model/native/native_fp8.h"
#include "fsdp/torch/nf4.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {

GatheredBucket::GatheredBucket(const Bucket& bucket, const at::Tensor& bytes) : bucket_(&bucket) {
  FSDPD_CHECK(bytes.numel() == bucket.gathered_bytes());
  bytes.zero_();
  values_ = bytes.narrow(0, 0, bucket.bucket_elements * BytesOf(bucket.types.gathered))
                .view(ScalarTypeOf(bucket.types.gathered));
  if (bucket.in_nf4 && bucket.shards > 1)
    blocks_ = bytes.narrow(0, bytes.numel() - bucket.wire_bytes(), bucket.wire_bytes());
  if (bucket.in_fp8())
    scales_ = bytes.narrow(0, bucket.scales_begin(), bytes.numel() - bucket.scales_begin()).view(at::kFloat);
}

GatheredBucket GatheredBucket::InPlace(const Bucket& bucket, const at::Tensor& stored) {
  FSDPD_CHECK(bucket.read_in_place() && stored.numel() == bucket.bucket_elements);
  GatheredBucket in_place;
  in_place.bucket_ = &bucket;
  in_place.values_ = stored;
  return in_place;
}

BoundParam GatheredBucket::Param(const ParamSlot& slot) const {
  BoundParam param = values_.narrow(0, slot.offset, slot.elements).view(slot.shape);
  if (scales_.defined()) {
    param.scales = scales_.narrow(0, slot.offset / bucket_->row, slot.elements / bucket_->row)
                       .view(at::IntArrayRef(slot.shape.data(), slot.shape.size() - 1));
  }
  return param;
}

void GatheredBucket::Write(const BucketRange& shard, const at::Tensor& from) const {
  if (blocks_.defined()) {
    blocks_.narrow(0, Nf4Bytes(shard.begin), Nf4Bytes(shard.elements)).copy_(from);
    return;
  }
  if (bucket_->in_nf4) return DequantizeNf4(from, values_);
  const at::Tensor to = values_.narrow(0, shard.begin, shard.elements);
  if (!scales_.defined()) {
    to.copy_(from);
    return;
  }
  const int64_t row = bucket_->row, rows = shard.elements / row;
  Fp8WeightsInto(from.view({rows, row}), {to.view({rows, row}), scales_.narrow(0, shard.begin / row, rows)});
}

absl::Status GatheredBucket::Gather(const BucketRange& own, Communicator* group) const {
  if (blocks_.defined()) {
    const DType byte = DType::kFp8;  // The gather moves bytes, and needs only their number.
    FSDPD_RETURN_IF_ERROR(group->AllGather(blocks_.mutable_data_ptr(), Nf4Bytes(own.elements), byte));
    DequantizeNf4(blocks_, values_);
    return absl::OkStatus();
  }
  FSDPD_RETURN_IF_ERROR(group->AllGather(values_.mutable_data_ptr(), own.elements, bucket_->types.gathered));
  if (!scales_.defined()) return absl::OkStatus();
  return group->AllGather(scales_.mutable_data_ptr(), own.elements / bucket_->row, DType::kFp32);
}

}  // namespace fsdpd
