// Fuzzer of list filters and orders: an accepted filter can be applied to a job, a node and an event; an
// error names the position in the text.
#include <absl/strings/match.h>

#include "base/check.h"
#include "coordinator/request/list_fields.h"
#include "tests/fuzzers/cases.h"

namespace fsdpd::fuzz {
namespace {

template <typename T>
void Ask(const absl::StatusOr<ListPredicate<T>>& filter, const T& of) {
  if (filter.ok() && *filter != nullptr) (*filter)(of);
  FSDPD_CHECK(filter.ok() || absl::StartsWith(filter.status().message(), "at offset ") ||
              absl::StartsWith(filter.status().message(), "has "));
}

}  // namespace
}  // namespace fsdpd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  fsdpd::v1::Job job;
  job.add_placements()->set_node("n");
  job.add_labels()->set_key("team");
  fsdpd::fuzz::Ask(fsdpd::JobFilter(text), job);
  fsdpd::fuzz::Ask(fsdpd::NodeFilter(text), fsdpd::v1::Node());
  fsdpd::fuzz::Ask(fsdpd::EventFilter(text), fsdpd::v1::Event());
  std::vector<fsdpd::v1::Node> nodes(2);
  fsdpd::OrderNodes(text, &nodes).IgnoreError();
  return 0;
}
