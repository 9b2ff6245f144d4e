#include "fsdp/checkpoint/dcp/dcp_index.h"
#include "fsdp/checkpoint/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto index = fsdpd::ReadMetadata(fsdpd::BytesOf(data, size));
  fsdpd::CheckShown(index.status());
  if (index.ok()) fsdpd::CheckIndex(*index);
  return 0;
}
