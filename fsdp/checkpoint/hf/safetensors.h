// Header of a safetensors file: its tensors and their positions.
//
// A file is the header's length (8 bytes), the header (JSON), and the data without gaps. Input may be corrupt
// or hostile: the header's size is bounded, and the position of every tensor must match its type and shape,
// consecutively up to the last byte of the file.
//
// Pure functions. Errors: those of `read`.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp/dcp_index.h"
#include "fsdp/checkpoint/format/tensor_type.h"
#include "fsdp/checkpoint/format/zip.h"

namespace fsdpd {

// A hundred thousand tensors. (The format's own bound is 100 MB: gigabytes when parsed.)
inline constexpr int64_t kMaxSafetensorsHeadBytes = 16 << 20;

struct SafetensorsEntry {
  std::string name;
  const TensorType* type = nullptr;  // Null: not supported.
  std::vector<int64_t> shape;
  int64_t begin = 0;  // Position in the file.
  int64_t bytes = 0;
  std::string type_name = {};  // As in the header: "BF16".
};

struct SafetensorsContents {
  std::vector<SafetensorsEntry> entries;  // With a valid shape and position; in file order.
  int64_t head_bytes = 0;                 // Position of the data.
  DcpViolations violations;               // Violations by tensor name; those of the file have an empty name.
  // The first violation as an error: DATA_LOSS for an invalid file, UNIMPLEMENTED for an unsupported type;
  // OK: none.
  absl::Status first;
};

// All violations of the header of a file of `size` bytes. Errors: those of `read`.
absl::StatusOr<SafetensorsContents> InspectSafetensors(int64_t size, const ReadAt& read);

// Assigns each of `tensors` its position, consecutively, and returns the header. REQUIRES: their types have a
// name in the format, BytesOf() of each is `bytes`, names are unique.
std::string LayOutSafetensors(std::vector<SafetensorsEntry>* tensors);

}  // namespace fsdpd
