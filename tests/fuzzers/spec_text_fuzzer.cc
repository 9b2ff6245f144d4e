// Fuzzer of spec files: a spec without errors is printed as YAML and JSON that parse to the same spec.
#include <absl/strings/string_view.h>

#include <string>

#include "base/check.h"
#include "client/spec/spec_print.h"
#include "client/spec/spec_text.h"
#include "tests/fuzzers/cases.h"

namespace {

constexpr size_t kMaxErrors = 100;

void CheckReadsBack(const fsdpd::v1::JobSpec& spec, const std::string& text) {
  const fsdpd::SpecText again = fsdpd::ParseSpec(text, "again");
  FSDPD_CHECK(again.violations.empty());
  FSDPD_CHECK(again.spec.SerializeAsString() == spec.SerializeAsString());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fsdpd::SpecText read =
      fsdpd::ParseSpec(absl::string_view(reinterpret_cast<const char*>(data), size), "case");
  FSDPD_CHECK(read.violations.size() <= kMaxErrors);
  if (!read.is_tree || !read.violations.empty()) return 0;
  CheckReadsBack(read.spec, fsdpd::ToYaml(read.spec));
  CheckReadsBack(read.spec, fsdpd::ToJson(read.spec));
  return 0;
}
