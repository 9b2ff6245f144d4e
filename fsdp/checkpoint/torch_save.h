// The file that torch.save makes of one tensor, and of one value: what torch.distributed.checkpoint keeps for
// each chunk of a tensor and for each thing that is none.
//
// A tensor's is written around data that stays where it is: head, the numbers in row-major order, tail. It is
// what torch 2.11 would write, byte for byte, except the 40 digits of `serialization_id`, which nothing
// reads. Its length follows from type and shape, so places in a file are known before a number is.
//
// Thread safety: const. Errors: DATA_LOSS for what is no such file, UNIMPLEMENTED for a tensor of a kind that
// is not read (sparse, quantized, of a type without a name here) and for a value whose pickle is not read,
// each with what was found, in UTF-8.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/checkpoint/pickle.h"
#include "fsdp/checkpoint/tensor_type.h"
#include "fsdp/checkpoint/zip.h"

namespace fsdpd {

struct TorchSaveFrame {
  std::string head;
  int64_t data_bytes = 0;
  int64_t tail_bytes = 0;

  int64_t bytes() const { return static_cast<int64_t>(head.size()) + data_bytes + tail_bytes; }
};

TorchSaveFrame FrameOf(const TensorType& type, const std::vector<int64_t>& shape);
std::string TailOf(const TensorType& type, const std::vector<int64_t>& shape, uint32_t data_crc32);

// Of a value: `pickle` as PickleWriter makes it.
std::string TorchSaved(const std::string& pickle);

struct SavedTensor {
  const TensorType* type = nullptr;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // In numbers, as `first`.
  int64_t first = 0;             // Of the numbers of the storage.
  ZipMember storage;             // Where in the file its bytes are.

  bool row_major() const;  // Its numbers are the storage from `first` on, in order.
};

// All that is told is within the file, and every number of the tensor within its storage.
absl::StatusOr<SavedTensor> ReadSavedTensor(int64_t size, const ReadAt& read);

// The pickle of a value; tensors in it are kOutside and stay where they are. UNIMPLEMENTED where it is what
// its checksum says and is not read: torch loads more kinds than are (pickle.h), and large ones.
absl::StatusOr<Pickle> ReadSavedValue(int64_t size, const ReadAt& read);

// The bytes of a shape's numbers; DATA_LOSS when they do not fit in 63 bits or a size is negative.
absl::StatusOr<int64_t> BytesOf(const TensorType& type, const std::vector<int64_t>& shape);

}  // namespace fsdpd
