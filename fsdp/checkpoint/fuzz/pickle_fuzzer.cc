#include "fsdp/checkpoint/fuzz/fuzz.h"
#include "fsdp/checkpoint/pickle.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto pickle = fsdpd::Pickle::Parse(fsdpd::BytesOf(data, size));
  fsdpd::CheckShown(pickle.status());
  if (pickle.ok()) FSDPD_CHECK(!fsdpd::DescribePickled(pickle->root()).empty());
  return 0;
}
