#include "fsdp/checkpoint/fuzz/fuzz.h"
#include "fsdp/checkpoint/hf/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes = fsdpd::BytesOf(data, size);
  const auto contents = fsdpd::InspectSafetensors(static_cast<int64_t>(size), fsdpd::ReadAtOf(bytes));
  FSDPD_CHECK_OK(contents.status());
  fsdpd::CheckShown(contents->first);
  if (!contents->first.ok()) return 0;
  for (const fsdpd::SafetensorsEntry& entry : contents->entries)
    FSDPD_CHECK(entry.begin >= 8 && entry.begin + entry.bytes <= static_cast<int64_t>(size));
  return 0;
}
