// Index of a torch.distributed.checkpoint (DCP) checkpoint: which tensors and values it has and where, as
// plain data; read from `.metadata` or computed from file layouts (dcp_file.h).
//
// A checkpoint is a directory. Each chunk of a tensor, and each value that is not a tensor, is a record in
// one of its files, in the format of torch.save (torch_save.h). CheckIndex() decides whether an index is
// valid: chunks are within their tensor, each element is in exactly one chunk, and records do not overlap. An
// index may be corrupt or hostile until it has been checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/checkpoint/format/tensor_type.h"
#include "fsdp/plan/layout/rectangles.h"

namespace fsdpd {

struct DcpPlace {
  int file = -1;  // Index into DcpIndex::files; -1: unknown.
  int64_t begin = 0;
  int64_t bytes = 0;
  std::string transform;  // Compression by the writer ("zstd"); only an empty one is supported.

  bool operator==(const DcpPlace& other) const;
};

struct DcpChunk {
  Rectangle at;  // Rectangle of the tensor. Torch writes empty chunks for empty shards.
  DcpPlace place;
};

struct DcpTensor {
  std::string name;
  std::string type_name;             // Torch's name.
  const TensorType* type = nullptr;  // Null: the type is not supported.
  std::vector<int64_t> shape;
  std::vector<DcpChunk> chunks;
};

// An entry that is not a tensor: a number, a text, or an object. It is pickled, and parsed only on request.
struct DcpValue {
  std::string name;
  DcpPlace place;
};

struct DcpIndex {
  std::vector<std::string> files;  // Names within the directory.
  std::vector<DcpTensor> tensors;
  std::vector<DcpValue> values;
};

// A violation in a checkpoint, as shown to users.
struct DcpViolation {
  std::string where;  // A tensor, a value or a file.
  std::string what;
};

// The first thousand violations, and the number of all others. Bounded, because a corrupt index can have one
// for every few bytes.
class DcpViolations {
 public:
  // Control characters, which names in a file may contain, are escaped: a violation is one line.
  void Add(const std::string& where, const std::string& what);
  void Add(const DcpViolations& others);  // Skips those that are already present.

  bool empty() const { return violations_.empty(); }
  size_t size() const { return violations_.size(); }
  const DcpViolation& operator[](size_t i) const { return violations_[i]; }
  std::vector<DcpViolation>::const_iterator begin() const { return violations_.begin(); }
  std::vector<DcpViolation>::const_iterator end() const { return violations_.end(); }
  int64_t left_out() const { return left_out_; }  // 0 up to a thousand.
  int64_t count() const { return static_cast<int64_t>(violations_.size()) + left_out_; }

 private:
  std::vector<DcpViolation> violations_;
  int64_t left_out_ = 0;
};

// All violations; empty if every tensor can be read as far as the index shows. Takes O(n log n) for chunks
// that are contiguous runs, such as ours; other chunks that are too many for pairwise comparison are a
// violation too.
DcpViolations CheckIndex(const DcpIndex& index);

// Whether the name is a single path component that stays within the directory.
bool IsPlainFileName(const std::string& name);

// Whether it has no elements. (Rectangle::elements() multiplies sizes, which may overflow in a corrupt
// index.)
bool IsEmpty(const Rectangle& at);

// Whether they have common elements, if neither is empty. REQUIRES: they are within a common tensor.
bool Overlap(const Rectangle& a, const Rectangle& b);

// For messages and keys: "[2, 3]".
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace fsdpd
