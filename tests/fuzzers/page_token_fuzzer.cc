// What is taken as a token names the place that it was made of.
#include "base/check.h"
#include "coordinator/page_token.h"
#include "tests/fuzzers/cases.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto cursor = fsdpd::DecodePageToken(std::string(reinterpret_cast<const char*>(data), size));
  if (!cursor.ok()) return 0;
  const auto again = fsdpd::DecodePageToken(fsdpd::EncodePageToken(*cursor));
  FSDPD_CHECK(again.ok() && again->id == cursor->id);
  FSDPD_CHECK(again->create_unix_nanos == cursor->create_unix_nanos);
  return 0;
}
