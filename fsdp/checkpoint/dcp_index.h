// What is in a checkpoint of torch.distributed.checkpoint (DCP), and where: plain data, as its `.metadata`
// says it and as the layouts of its files make it (dcp_file.h).
//
// A checkpoint is a directory. Each chunk of a tensor, and each value that is no tensor, is a record of a
// file of it: what torch.save writes (torch_save.h). CheckIndex() owns what makes an index whole: chunks
// within their tensor, each number in exactly one, records apart from each other. What an index says may be
// damaged or hostile until then.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/checkpoint/tensor_type.h"
#include "fsdp/plan/layout/rectangles.h"

namespace fsdpd {

struct DcpPlace {
  int file = -1;  // Of DcpIndex::files; -1: nothing says where it is.
  int64_t begin = 0;
  int64_t bytes = 0;
  std::string transform;  // What its writer passed it through ("zstd"); we read only what is empty.

  bool operator==(const DcpPlace& other) const;
};

struct DcpChunk {
  Rectangle
      at;  // Of the tensor. Where a shard has no numbers torch writes empty chunks, several at one place.
  DcpPlace place;
};

struct DcpTensor {
  std::string name;
  std::string type_name;             // torch's.
  const TensorType* type = nullptr;  // Null: one that is not read.
  std::vector<int64_t> shape;
  std::vector<DcpChunk> chunks;
};

// Something that is no tensor: a number, a text, a state of some class. It is pickled, and only looked into
// when asked.
struct DcpValue {
  std::string name;
  DcpPlace place;
};

struct DcpIndex {
  std::vector<std::string> files;  // Names within the directory.
  std::vector<DcpTensor> tensors;
  std::vector<DcpValue> values;
};

// What is wrong with a checkpoint, for people.
struct DcpFault {
  std::string where;  // A tensor, a value or a file.
  std::string what;
};

// The first thousand, and how many more there were: an index can have a fault for each few bytes of it, and
// nobody reads more.
class DcpFaults {
 public:
  void Add(const std::string& where, std::string what);
  void Add(const DcpFaults& others);  // But for those that are told already.

  bool empty() const { return told_.empty(); }
  size_t size() const { return told_.size(); }
  const DcpFault& operator[](size_t i) const { return told_[i]; }
  std::vector<DcpFault>::const_iterator begin() const { return told_.begin(); }
  std::vector<DcpFault>::const_iterator end() const { return told_.end(); }
  int64_t left_out() const { return left_out_; }  // 0 where fewer than a thousand are told.
  int64_t count() const { return static_cast<int64_t>(told_.size()) + left_out_; }

 private:
  std::vector<DcpFault> told_;
  int64_t left_out_ = 0;
};

// What is wrong; none for an index whose every tensor can be read as far as the index knows. Takes n log n
// for chunks that are runs of numbers, as ours are; where others are too many to be compared with each other,
// that is a fault too.
DcpFaults CheckIndex(const DcpIndex& index);

// That it is one name in a directory, and no way out of it.
bool IsPlainFileName(const std::string& name);

// Has no numbers. (Rectangle::elements() multiplies, which the sizes of a damaged index may not bear.)
bool IsEmpty(const Rectangle& at);

// For messages and keys: "[2, 3]".
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace fsdpd
