// The head of a safetensors file: which tensors it has and where their numbers are.
//
// A file is 8 bytes with the head's length, the head (JSON), and numbers without gaps. What is read may be
// damaged or hostile: the head is bounded in bytes, and every tensor's place must fit its type and shape, one
// after the other to the last byte of the file.
//
// Pure functions. Errors: DATA_LOSS for what is no such file, UNIMPLEMENTED for a type of numbers that is not
// read, each with what was found; or what `read` returned. For who looks, they are faults, all at once.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp_index.h"
#include "fsdp/checkpoint/tensor_type.h"
#include "fsdp/checkpoint/zip.h"

namespace fsdpd {

// A hundred thousand tensors. (The format's own bound is 100 MB: gigabytes, as values.)
inline constexpr int64_t kMaxSafetensorsHeadBytes = 16 << 20;

struct SafetensorsEntry {
  std::string name;
  const TensorType* type = nullptr;  // Null, of LookIntoSafetensors(): one that is not read.
  std::vector<int64_t> shape;
  int64_t begin = 0;  // In the file.
  int64_t bytes = 0;
  std::string type_name = {};  // As the head has it: "BF16".
};

struct SafetensorsContents {
  std::vector<SafetensorsEntry> entries;  // That have a shape and a place within the file; as they lie there.
  int64_t head_bytes = 0;                 // Before the first number.
  DcpFaults faults;                       // Of a tensor by its name, or of the file by none.
  absl::Status first;                     // The first of them as an error; OK: there are none.
};

// All that is wrong with the head of a file of `size` bytes. An error is `read`'s.
absl::StatusOr<SafetensorsContents> LookIntoSafetensors(int64_t size, const ReadAt& read);

// In the order in which they lie in the file of `size` bytes.
absl::StatusOr<std::vector<SafetensorsEntry>> ReadSafetensors(int64_t size, const ReadAt& read);

// Gives each of `tensors` its place, one after the other, and returns what stands before them. REQUIRES:
// HasSafetensorsName() of their types, BytesOf() of each is `bytes`, names differ.
std::string LayOutSafetensors(std::vector<SafetensorsEntry>* tensors);

bool HasSafetensorsName(const TensorType& type);

}  // namespace fsdpd
