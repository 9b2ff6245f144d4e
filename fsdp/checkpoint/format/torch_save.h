// The torch.save format for a single tensor or value: the records of torch.distributed.checkpoint, one per
// chunk of a tensor and one per value that is not a tensor.
//
// A tensor is written around data that stays in place: head, elements in row-major order, tail. The result is
// byte for byte what torch 2.11 writes, except for the 40 digits of `serialization_id`, which nothing reads.
// The length depends only on type and shape, so file positions are known in advance.
//
// Const methods are thread-safe. Errors: DATA_LOSS for an invalid file; UNIMPLEMENTED for an unsupported kind
// of tensor (sparse, quantized, or of a type without a name here) and for a value whose pickle is not
// supported; each with what was found, in UTF-8.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/checkpoint/format/pickle.h"
#include "fsdp/checkpoint/format/tensor_type.h"
#include "fsdp/checkpoint/format/zip.h"

namespace fsdpd {

struct TorchSaveFrame {
  std::string head;
  int64_t data_bytes = 0;
  int64_t tail_bytes = 0;

  int64_t bytes() const { return static_cast<int64_t>(head.size()) + data_bytes + tail_bytes; }
};

TorchSaveFrame FrameOf(const TensorType& type, const std::vector<int64_t>& shape);
std::string TailOf(const TensorType& type, const std::vector<int64_t>& shape, uint32_t data_crc32);

// Record of a value; `pickle` is from PickleWriter.
std::string TorchSaved(const std::string& pickle);

struct SavedTensor {
  const TensorType* type = nullptr;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // In elements, like `first`.
  int64_t first = 0;             // Index of the first element in the storage.
  ZipMember storage;             // Position of its bytes in the file.

  bool row_major() const;  // The elements are contiguous in the storage, starting at `first`.
};

// The result is validated: it is within the file, and every element is within its storage.
absl::StatusOr<SavedTensor> ReadSavedTensor(int64_t size, const ReadAt& read);

// The same for a tensor inside a value that was read from there.
absl::StatusOr<SavedTensor> FindSavedTensor(const PickleValue& value, int64_t size, const ReadAt& read);

// The pickle of a value; tensors in it are kOutside and not read. UNIMPLEMENTED if its checksum is correct
// but the pickle is not supported: torch loads more kinds (pickle.h), and larger ones.
absl::StatusOr<Pickle> ReadSavedValue(int64_t size, const ReadAt& read);

// Data size of a shape; DATA_LOSS if it does not fit in 63 bits or a dimension is negative.
absl::StatusOr<int64_t> BytesOf(const TensorType& type, const std::vector<int64_t>& shape);

}  // namespace fsdpd
