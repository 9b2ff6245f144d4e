#include "fsdp/checkpoint/format/tensor_store.h"

namespace fsdpd {

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

}  // namespace fsdpd
