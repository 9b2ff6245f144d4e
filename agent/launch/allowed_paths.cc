#include "agent/launch/allowed_paths.h"

#include <absl/strings/str_cat.h>

#include <utility>

#include "base/dot_dot.h"

namespace fsdpd {
namespace {

using TokenFiles = google::protobuf::RepeatedPtrField<v1::TokenFile>;

void Add(std::string field, std::string path, std::vector<SpecPath>* paths) {
  if (!path.empty()) paths->push_back({std::move(field), std::move(path)});
}

void AddFiles(const std::string& list, const TokenFiles& files, std::vector<SpecPath>* paths) {
  for (int i = 0; i < files.size(); ++i) {
    const std::string field = absl::StrCat(list, "[", i, "].path");
    if (files[i].type() == v1::TOKEN_TYPE_MEGATRON) {
      for (const char* half : {".bin", ".idx"}) Add(field, files[i].path() + half, paths);
    } else {
      Add(field, files[i].path(), paths);
    }
    Add(absl::StrCat(list, "[", i, "].mask"), files[i].mask(), paths);
  }
}

}  // namespace

std::vector<SpecPath> PathsOf(const v1::JobSpec& spec) {
  std::vector<SpecPath> paths;
  AddFiles("data.tokens", spec.data().tokens(), &paths);
  AddFiles("data.validation", spec.data().validation(), &paths);
  Add("checkpoint.dir", spec.checkpoint().dir(), &paths);
  Add("checkpoint.load", spec.checkpoint().load(), &paths);
  return paths;
}

absl::Status CheckPaths(const v1::JobSpec& spec, const std::vector<PathRoot>& roots) {
  if (roots.empty()) return absl::OkStatus();
  for (const auto& [field, path] : PathsOf(spec)) {
    const absl::StatusOr<bool> below = LiesBelow(path, roots);
    const std::string object = absl::StrCat(field, ": '", path, "' ");
    if (!below.ok()) {
      return absl::UnavailableError(
          absl::StrCat(object, "cannot be opened on this node: ", below.status().message()));
    }
    if (*below) continue;
    if (HasDotDot(path)) {
      return absl::PermissionDeniedError(
          absl::StrCat(object,
                       "is not opened on this node: it contains .., which is not supported with --path-root; "
                       "write the path without .."));
    }
    return absl::PermissionDeniedError(
        absl::StrCat(object, "is not opened on this node: it is outside of --path-root ", NamesOf(roots)));
  }
  return absl::OkStatus();
}

}  // namespace fsdpd
