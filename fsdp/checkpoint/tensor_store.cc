#include "fsdp/checkpoint/tensor_store.h"

namespace fsdpd {

std::vector<size_t> FileBegins(const std::vector<StoredTensor>& tensors, int64_t most_bytes) {
  std::vector<size_t> begins;
  int64_t bytes = 0;  // Of the last file.
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (begins.empty() || tensors[i].bytes > most_bytes - bytes) {
      begins.push_back(i);
      bytes = 0;
    }
    bytes += tensors[i].bytes;
  }
  return begins;
}

}  // namespace fsdpd
