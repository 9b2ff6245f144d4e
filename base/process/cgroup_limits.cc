#include "base/process/cgroup_limits.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/process/text_files.h"

namespace fsdpd {
namespace {

std::optional<int64_t> NumberIn(const std::string& path) {
  int64_t number = 0;  // "max" means no limit and does not parse.
  const std::string text = ReadText(path);
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &number)) return std::nullopt;
  return number;
}

// Value of `name` in a file with lines "name number"; 0 if missing.
int64_t FieldIn(const std::string& path, absl::string_view name) {
  const std::string text = ReadText(path);
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> words = absl::StrSplit(line, ' ');
    int64_t number = 0;
    if (words.first == name && absl::SimpleAtoi(words.second, &number)) return number;
  }
  return 0;
}

// File and field names of one cgroup version.
struct Names {
  const char *limit, *usage, *active_file, *inactive_file;
};
struct Controller {
  const char* name;
  Names version1, version2;
};
constexpr Controller kMemory = {
    "memory",
    {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file", "total_inactive_file"},
    {"memory.max", "memory.current", "active_file", "inactive_file"}};
constexpr Controller kPids = {
    "pids", {"pids.max", "pids.current", "", ""}, {"pids.max", "pids.current", "", ""}};

using Visit = std::function<void(const std::string& directory, const Names& names)>;

// Visits the directory of `group`, a path below `mount`, and all of its ancestors. In a container, the path
// may be that of the host and not exist here; then the mount itself is the cgroup of the container.
void VisitUpwards(const std::string& mount, absl::string_view group, const Names& of, const Visit& visit) {
  std::string directory = mount;
  std::vector<absl::string_view> names = absl::StrSplit(group, '/', absl::SkipEmpty());
  // ".." refers to cgroups outside of the view of the container.
  names.erase(std::remove(names.begin(), names.end(), ".."), names.end());
  visit(directory, of);
  for (const absl::string_view part : names) {
    absl::StrAppend(&directory, "/", part);
    visit(directory, of);
  }
}

void VisitGroups(const Controller& controller, const std::string& root, const Visit& visit) {
  const std::string mount = root + "/sys/fs/cgroup";
  const std::string groups = ReadText(root + "/proc/self/cgroup");
  // "0::/system.slice/x.service" for version 2, "5:cpuset,memory:/slurm/job_7" for a hierarchy of version 1.
  for (const absl::string_view line : absl::StrSplit(groups, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(fields[1], ',');
    if (fields[1].empty()) {
      VisitUpwards(mount, fields[2], controller.version2, visit);
    } else if (std::count(controllers.begin(), controllers.end(), controller.name) != 0) {
      VisitUpwards(absl::StrCat(mount, "/", controller.name), fields[2], controller.version1, visit);
    }
  }
}

}  // namespace

std::optional<int64_t> CgroupMemoryLimit(const std::string& root) {
  std::optional<int64_t> smallest;
  VisitGroups(kMemory, root, [&](const std::string& directory, const Names& names) {
    const std::optional<int64_t> limit = NumberIn(absl::StrCat(directory, "/", names.limit));
    if (limit.has_value()) smallest = std::min(smallest.value_or(*limit), *limit);
  });
  return smallest;
}

std::optional<CgroupMemory> TightestCgroup(const std::string& root) {
  std::optional<CgroupMemory> tightest;
  VisitGroups(kMemory, root, [&](const std::string& directory, const Names& names) {
    const std::optional<int64_t> limit = NumberIn(absl::StrCat(directory, "/", names.limit));
    const std::optional<int64_t> usage = NumberIn(absl::StrCat(directory, "/", names.usage));
    if (!limit.has_value() || !usage.has_value()) return;
    const std::string stat = directory + "/memory.stat";
    const int64_t of_files = FieldIn(stat, names.active_file) + FieldIn(stat, names.inactive_file);
    const int64_t left = *limit - (*usage - of_files);
    if (!tightest.has_value() || left < tightest->left_bytes) tightest = CgroupMemory{*limit, left};
  });
  return tightest;
}

std::optional<CgroupTasks> TightestCgroupOfTasks(const std::string& root) {
  std::optional<CgroupTasks> tightest;
  VisitGroups(kPids, root, [&](const std::string& directory, const Names& names) {
    const std::optional<int64_t> limit = NumberIn(absl::StrCat(directory, "/", names.limit));
    const std::optional<int64_t> running = NumberIn(absl::StrCat(directory, "/", names.usage));
    if (!limit.has_value() || !running.has_value()) return;
    if (!tightest.has_value() || *limit - *running < tightest->limit - tightest->running)
      tightest = CgroupTasks{*limit, *running};
  });
  return tightest;
}

}  // namespace fsdpd
