#include "fsdp/checkpoint/format/json.h"
#include "fsdp/checkpoint/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto value = fsdpd::ParseJson(fsdpd::BytesOf(data, size));
  fsdpd::CheckShown(value.status());
  if (value.ok()) FSDPD_CHECK(fsdpd::IsUtf8(value->text));
  return 0;
}
