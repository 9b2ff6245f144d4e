// Interfaces for named tensors in a directory of any format, which conversions read from and write to.
// Implementations: DCP (dcp_reader.h, dcp_store.h) and Hugging Face safetensors (hf_store.h).
//
// Thread safety: Read() and Write() are thread-safe; everything else must be called before or after them.
// Errors: those of the format's reader and writer, which name the file or tensor.
#pragma once

#include <absl/status/statusor.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/checkpoint/format/tensor_type.h"
#include "fsdp/plan/layout/rectangles.h"

namespace fsdpd {

struct StoredTensor {
  std::string name;
  const TensorType* type = nullptr;
  std::vector<int64_t> shape;
  int64_t bytes = 0;

  int64_t numbers() const { return bytes / type->bytes; }
};

class TensorReader {
 public:
  virtual ~TensorReader() = default;

  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // Sorted by name.

  // Index in tensors(), or -1.
  int64_t Find(const std::string& name) const {
    const auto found =
        std::lower_bound(tensors_.begin(), tensors_.end(), name,
                         [](const StoredTensor& tensor, const std::string& of) { return tensor.name < of; });
    return found != tensors_.end() && found->name == name ? found - tensors_.begin() : -1;
  }

  // Elements [begin, begin + count), in row-major order. REQUIRES: the tensor has them.
  virtual absl::Status ReadRun(size_t tensor, int64_t begin, int64_t count, void* out) const = 0;

  // All elements.
  absl::Status Read(size_t tensor, void* out) const {
    return ReadRun(tensor, 0, tensors_[tensor].numbers(), out);
  }

  // The elements of `part`, in row-major order; reads no other bytes. REQUIRES: it is within the tensor.
  virtual absl::Status ReadPart(size_t tensor, const Rectangle& part, void* out) const = 0;

  // Distinguishes these files from others of the same names: lines "FILE: what = value", equal for copies on
  // other disks. Samples a few blocks of each file, so not every number counts. Empty for formats with
  // checksums.
  virtual absl::StatusOr<std::vector<std::string>> Traits() const { return std::vector<std::string>(); }

  // Fails if a file was written to or replaced since Open (InputFile); OK for formats with checksums.
  virtual absl::Status CheckUnchanged() const { return absl::OkStatus(); }

 protected:
  // Sorts the tensors; indices passed to Read() refer to that order.
  void SetTensors(std::vector<StoredTensor> tensors) {
    std::sort(tensors.begin(), tensors.end(),
              [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
    tensors_ = std::move(tensors);
  }

 private:
  std::vector<StoredTensor> tensors_;
};

// A file of the directory that is complete and on disk.
struct CompleteFile {
  std::string name;
  int64_t bytes = 0;
  uint32_t crc32 = 0;  // Checksum of all its bytes.
};

// Writer for a list of tensors. Disk space is reserved on creation; files that are already complete are not
// touched.
//
// A file gets its final name when it is complete and on disk; a destroyed writer removes incomplete files.
// The directory can be read only after Finish().
class TensorWriter {
 public:
  // `begins`: the first tensor of each file.
  explicit TensorWriter(std::vector<size_t> begins) : begins_(std::move(begins)) {}
  virtual ~TensorWriter() = default;

  // Writes the tensor with that index, once for each tensor that is not in a complete file.
  virtual absl::Status Write(size_t tensor, const void* numbers) = 0;

  // Index of the file that contains the tensor, from 0.
  size_t FileOf(size_t tensor) const {
    return std::upper_bound(begins_.begin(), begins_.end(), tensor) - begins_.begin() - 1;
  }

  virtual bool IsComplete(size_t file) const = 0;

  // REQUIRES: each of its tensors was written, and it was not complete before. Any thread, once per file.
  virtual absl::StatusOr<CompleteFile> FinishFile(size_t file) = 0;

  // REQUIRES: every tensor was written. Completes remaining files; on return everything is on disk and
  // readable.
  virtual absl::Status Finish() = 0;

  int64_t files() const { return static_cast<int64_t>(begins_.size()); }

 protected:
  // One past the last of the file's tensors, which are `tensors` in total.
  size_t EndOf(size_t file, size_t tensors) const {
    return file + 1 < begins_.size() ? begins_[file + 1] : tensors;
  }
  absl::Status FinishFiles();  // All that are not complete.

  const std::vector<size_t> begins_;
};

// The file with this name and size, or null.
const CompleteFile* FindComplete(const std::vector<CompleteFile>& files, const std::string& name,
                                 int64_t bytes);

// Divides tensors of these sizes into files of at most `most_bytes` each, in order; returns the first tensor
// of each file. A larger tensor gets its own file.
std::vector<size_t> FileBegins(const std::vector<int64_t>& tensor_bytes, int64_t most_bytes);

// Visits the runs of `part` (elements that are contiguous in both `from` and `to`, which contain it), in
// order. The rectangles must outlive it.
class Runs {
 public:
  Runs(const Rectangle& part, const Rectangle& from, const Rectangle& to);

  int64_t length() const { return length_; }
  // First element of the current run, as its index in the row-major rectangle.
  int64_t from() const { return NumberIn(from_, at_); }
  int64_t to() const { return NumberIn(to_, at_); }

  bool Next();  // False after the last run.

  static int64_t NumberIn(const Rectangle& whole, const std::vector<int64_t>& at);

 private:
  const Rectangle &part_, &from_, &to_;
  std::vector<int64_t> at_;
  size_t outer_;  // Number of dimensions that are iterated.
  int64_t length_ = 1;
};

}  // namespace fsdpd
