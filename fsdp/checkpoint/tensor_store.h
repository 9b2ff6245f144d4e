// Named tensors in a directory, whatever its format: what a conversion reads from and writes to. There are
// two kinds of each: DCP (dcp_store.h) and Hugging Face's safetensors (hf_store.h).
//
// Thread safety: Read() and Write() may run on any number of threads; the rest before or after them. Errors
// are those of the format's own reader and writer, and name file or tensor.
#pragma once

#include <absl/status/statusor.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/checkpoint/tensor_type.h"
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

  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // By name.

  // Its number in tensors(), or -1.
  int64_t Find(const std::string& name) const {
    const auto found =
        std::lower_bound(tensors_.begin(), tensors_.end(), name,
                         [](const StoredTensor& tensor, const std::string& of) { return tensor.name < of; });
    return found != tensors_.end() && found->name == name ? found - tensors_.begin() : -1;
  }

  // Numbers [begin, begin + count) of it, in row-major order. REQUIRES: it has them.
  virtual absl::Status ReadRun(size_t tensor, int64_t begin, int64_t count, void* out) const = 0;

  // All its numbers.
  absl::Status Read(size_t tensor, void* out) const {
    return ReadRun(tensor, 0, tensors_[tensor].numbers(), out);
  }

  // Those of `part`, in row-major order, and no other byte of it. REQUIRES: it is within the tensor.
  virtual absl::Status ReadPart(size_t tensor, const Rectangle& part, void* out) const = 0;

  // What tells these files from others of the same names: lines "FILE: what = value", the same for copies on
  // other disks. Of a few blocks of each, so not of every number. None where checksums tell.
  virtual absl::StatusOr<std::vector<std::string>> Traits() const { return std::vector<std::string>(); }

  // That no file was written to or replaced since Open (InputFile); nothing where checksums tell.
  virtual absl::Status CheckUnchanged() const { return absl::OkStatus(); }

 protected:
  // Sorts them; the order is what Read()'s numbers mean.
  void SetTensors(std::vector<StoredTensor> tensors) {
    std::sort(tensors.begin(), tensors.end(),
              [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
    tensors_ = std::move(tensors);
  }

 private:
  std::vector<StoredTensor> tensors_;
};

// A file of a directory that is complete and on disk.
struct WholeFile {
  std::string name;
  int64_t bytes = 0;
  uint32_t crc32 = 0;  // Of all its bytes.
};

// Made for a list of tensors, with the room that they need reserved on disk, and with files of theirs that
// are whole already: those are left as they are.
//
// A file has its name when it is complete and on disk, and another one before; a writer that is destroyed
// takes away what it did not complete. The directory can be read after Finish(), and not before.
class TensorWriter {
 public:
  virtual ~TensorWriter() = default;

  // The numbers of that tensor of the list, once for each that is in no whole file.
  virtual absl::Status Write(size_t tensor, const void* numbers) = 0;

  // Of the file with that tensor; files are numbered from 0.
  virtual size_t FileOf(size_t tensor) const = 0;

  virtual bool IsWhole(size_t file) const = 0;

  // REQUIRES: each of its tensors was written, and it was not whole. On any thread, once for each file.
  virtual absl::StatusOr<WholeFile> FinishFile(size_t file) = 0;

  // REQUIRES: every tensor was written. When it returns all is on disk, files that nobody finished too, and
  // the directory can be read.
  virtual absl::Status Finish() = 0;

  virtual int64_t files() const = 0;
};

// Cuts a list of tensors of these bytes into files of at most `most_bytes` each, in order: the first tensor
// of each file. What is larger is a file of its own.
std::vector<size_t> FileBegins(const std::vector<int64_t>& tensor_bytes, int64_t most_bytes);

}  // namespace fsdpd
