#include "fsdp/checkpoint/dcp/dcp_sums.h"
#include "fsdp/checkpoint/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdpd::CheckShown(fsdpd::ParseSums(fsdpd::BytesOf(data, size)).status());
  return 0;
}
