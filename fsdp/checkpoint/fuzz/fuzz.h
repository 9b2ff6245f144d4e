// What the fuzzers share. Each parser of a checkpoint has one: bytes that libFuzzer makes up, guided by which
// code they reach, are read or refused and nothing else. `tests/run fuzz` runs them, with address and
// undefined-behaviour sanitizers; checkpoint_fuzz_test.cc is their small twin in the tests of each commit.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "fsdp/checkpoint/pickle.h"
#include "fsdp/checkpoint/zip.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace fsdpd {

inline std::string BytesOf(const uint8_t* data, size_t size) {
  return std::string(reinterpret_cast<const char*>(data), size);
}

// A message goes into JSON and onto a screen, whatever bytes brought it about.
inline void CheckShown(const absl::Status& status) { FSDPD_CHECK(IsUtf8(status.message())); }

}  // namespace fsdpd
