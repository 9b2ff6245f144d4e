#include "tests/sim/world.h"

#include <absl/strings/str_format.h>
#include <stdio.h>

namespace fsdpd::sim {

bool World::RunNext() {
  if (events_.empty()) return false;
  auto first = events_.extract(events_.begin());
  now_ = first.key().first;
  first.mapped()();
  return true;
}

void World::ReportViolation(const std::string& invariant) {
  Log("VIOLATED: ", invariant);
  if (violation_.empty()) violation_ = invariant;
}

void World::Append(const std::string& text) {
  std::string line = text;
  // The temporary directory's name (base/temp_dir.h) differs between runs.
  static const auto& kDirectory = *new std::string("/fsdpd-test-");
  for (size_t at = line.find(kDirectory); at != std::string::npos; at = line.find(kDirectory, at + 1))
    line.erase(at + kDirectory.size(), sizeof("XXXXXX") - 1);
  for (const char c : line) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 1099511628211u;  // FNV-1a.
  hash_ = (hash_ ^ static_cast<uint64_t>(absl::ToUnixNanos(now_))) * 1099511628211u;
  lines_.push_back(absl::StrFormat("%8.3f %s", absl::ToDoubleSeconds(age()), line));
  if (verbose_) fprintf(stdout, "%s\n", lines_.back().c_str());
  if (lines_.size() > kMaxLines) lines_.pop_front();
}

}  // namespace fsdpd::sim
