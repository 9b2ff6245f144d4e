#include "base/rank/trace_file.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <vector>

namespace fsdpd {

std::string TraceFileName(int64_t step, int rank) {
  return absl::StrCat("trace_step_", step, "_rank_", rank, ".json");
}

std::string MemoryFileName(int64_t step, int rank) {
  return absl::StrCat("memory_step_", step, "_rank_", rank, ".pickle");
}

bool ParseTraceFileName(absl::string_view name, int64_t* step, int* rank) {
  const std::vector<absl::string_view> words = absl::StrSplit(name, '_');
  // Compare with the formatted name: "+1" and "01" parse too.
  return words.size() == 5 && absl::SimpleAtoi(words[2], step) &&
         absl::SimpleAtoi(absl::StripSuffix(words[4], ".json"), rank) && TraceFileName(*step, *rank) == name;
}

}  // namespace fsdpd
