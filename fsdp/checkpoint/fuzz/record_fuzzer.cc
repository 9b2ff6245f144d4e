#include "fsdp/checkpoint/format/torch_save.h"
#include "fsdp/checkpoint/fuzz/fuzz.h"

// Parses a record as a zip with valid checksums, and as a tensor or a value.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes = fsdpd::BytesOf(data, size);
  const auto length = static_cast<int64_t>(size);
  const auto read = fsdpd::ReadAtOf(bytes);
  const auto members = fsdpd::ReadZip(length, read);
  fsdpd::CheckShown(members.status());
  if (members.ok()) {
    for (const fsdpd::ZipMember& member : *members) fsdpd::ReadZipMember(member, read, length).IgnoreError();
  }
  const auto tensor = fsdpd::ReadSavedTensor(length, read);
  fsdpd::CheckShown(tensor.status());
  if (tensor.ok()) FSDPD_CHECK(tensor->storage.begin + tensor->storage.size <= length);
  fsdpd::CheckShown(fsdpd::ReadSavedValue(length, read).status());
  return 0;
}
