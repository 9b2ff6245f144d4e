#include "fsdp/checkpoint/format/pickle.h"
#include "fsdp/checkpoint/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto pickle = fsdpd::Pickle::Parse(fsdpd::BytesOf(data, size));
  fsdpd::CheckShown(pickle.status());
  if (pickle.ok()) FSDPD_CHECK(!fsdpd::DescribePickled(pickle->root()).empty());
  return 0;
}
