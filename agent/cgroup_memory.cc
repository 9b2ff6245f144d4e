#include "agent/cgroup_memory.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

namespace fsdpd {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The smallest number in the files `name` of `group`, a path below `mount`, and of all folders above it. In a
// container the path may be the host's and not be there: then the mount itself is the container's group.
void TakeSmallest(const std::string& mount, absl::string_view group, const char* name,
                  std::optional<int64_t>* smallest) {
  std::string folder = mount;
  std::vector<absl::string_view> names = absl::StrSplit(group, '/', absl::SkipEmpty());
  // What lies outside of the container's view of the tree, where ".." would lead to.
  names.erase(std::remove(names.begin(), names.end(), ".."), names.end());
  names.insert(names.begin(), "");
  for (const absl::string_view part : names) {
    if (!part.empty()) absl::StrAppend(&folder, "/", part);
    int64_t bytes = 0;  // "max" is no number.
    const std::string text = ReadText(absl::StrCat(folder, "/", name));
    if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &bytes)) continue;
    *smallest = std::min(smallest->value_or(bytes), bytes);
  }
}

}  // namespace

std::optional<int64_t> CgroupMemoryLimit(const std::string& root) {
  std::optional<int64_t> smallest;
  const std::string mount = root + "/sys/fs/cgroup";
  const std::string groups = ReadText(root + "/proc/self/cgroup");
  // "0::/system.slice/x.service" for version 2, "5:cpuset,memory:/slurm/job_7" for a hierarchy of version 1.
  for (const absl::string_view line : absl::StrSplit(groups, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(fields[1], ',');
    if (fields[1].empty()) {
      TakeSmallest(mount, fields[2], "memory.max", &smallest);
    } else if (std::count(controllers.begin(), controllers.end(), "memory") != 0) {
      TakeSmallest(mount + "/memory", fields[2], "memory.limit_in_bytes", &smallest);
    }
  }
  return smallest;
}

}  // namespace fsdpd
