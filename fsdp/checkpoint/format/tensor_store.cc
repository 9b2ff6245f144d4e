#include "fsdp/checkpoint/format/tensor_store.h"

#include "base/check.h"

namespace fsdpd {

absl::Status TensorWriter::FinishFiles() {
  for (size_t file = 0; file < begins_.size(); ++file) {
    if (!IsComplete(file)) FSDPD_RETURN_IF_ERROR(FinishFile(file).status());
  }
  return absl::OkStatus();
}

const CompleteFile* FindComplete(const std::vector<CompleteFile>& files, const std::string& name,
                                 int64_t bytes) {
  const auto found = std::find_if(files.begin(), files.end(), [&](const CompleteFile& file) {
    return file.name == name && file.bytes == bytes;
  });
  return found == files.end() ? nullptr : &*found;
}

std::vector<size_t> FileBegins(const std::vector<int64_t>& tensor_bytes, int64_t most_bytes) {
  std::vector<size_t> begins;
  int64_t bytes = 0;  // Size of the last file.
  for (size_t i = 0; i < tensor_bytes.size(); ++i) {
    if (begins.empty() || tensor_bytes[i] > most_bytes - bytes) {
      begins.push_back(i);
      bytes = 0;
    }
    bytes += tensor_bytes[i];
  }
  return begins;
}

Runs::Runs(const Rectangle& part, const Rectangle& from, const Rectangle& to)
    : part_(part), from_(from), to_(to), at_(part.offsets), outer_(part.sizes.size()) {
  while (outer_ > 0) {
    --outer_;
    length_ *= part.sizes[outer_];
    if (part.sizes[outer_] != from.sizes[outer_] || part.sizes[outer_] != to.sizes[outer_]) break;
  }
}

bool Runs::Next() {
  for (size_t d = outer_; d > 0; --d) {
    if (++at_[d - 1] < part_.offsets[d - 1] + part_.sizes[d - 1]) return true;
    at_[d - 1] = part_.offsets[d - 1];
  }
  return false;
}

int64_t Runs::NumberIn(const Rectangle& whole, const std::vector<int64_t>& at) {
  int64_t number = 0;
  for (size_t d = 0; d < at.size(); ++d) number = number * whole.sizes[d] + (at[d] - whole.offsets[d]);
  return number;
}

}  // namespace fsdpd
