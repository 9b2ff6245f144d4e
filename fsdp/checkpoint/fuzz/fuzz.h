// Shared parts of the fuzzers. Each parser of a checkpoint has one: inputs that libFuzzer generates, guided
// by coverage, must be parsed or rejected without any other effect. `tests/run fuzz` runs them with address
// and undefined-behavior sanitizers; checkpoint_fuzz_test.cc is a small version that runs with every commit.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "fsdp/checkpoint/format/pickle.h"
#include "fsdp/checkpoint/format/zip.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace fsdpd {

inline std::string BytesOf(const uint8_t* data, size_t size) {
  return std::string(reinterpret_cast<const char*>(data), size);
}

// Messages are put into JSON and shown on screens, whatever the input was.
inline void CheckShown(const absl::Status& status) { FSDPD_CHECK(IsUtf8(status.message())); }

}  // namespace fsdpd
