// Fuzzer of page tokens: an accepted token encodes to the same position.
#include "base/check.h"
#include "coordinator/api/page_token.h"
#include "tests/fuzzers/cases.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string token(reinterpret_cast<const char*>(data), size);
  for (const char* mark : {"", "a3"}) {
    if (const auto cursor = fsdpd::DecodePageToken(token, mark); cursor.ok()) {
      const auto again = fsdpd::DecodePageToken(fsdpd::EncodePageToken(*cursor, mark), mark);
      FSDPD_CHECK(again.ok() && again->id == cursor->id && again->unix_nanos == cursor->unix_nanos);
    }
    if (const auto cursor = fsdpd::DecodeEventToken(token, mark); cursor.ok())
      FSDPD_CHECK(*fsdpd::DecodeEventToken(fsdpd::EncodeEventToken(*cursor, mark), mark) == *cursor);
  }
  return 0;
}
