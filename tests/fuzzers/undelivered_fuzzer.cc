// Fuzzer of the file of undelivered messages in the work directory: any content can be read.
#include <fstream>

#include "agent/link/undelivered.h"
#include "base/check.h"
#include "base/log.h"
#include "base/temp_dir.h"
#include "tests/fuzzers/cases.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdpd::TakeLog([](fsdpd::Severity, absl::string_view) {});
  static const auto& dir = *new fsdpd::TempDir;
  std::ofstream(dir.File("undelivered"), std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  fsdpd::TakeUndelivered(dir.path(), "n");
  return 0;
}
