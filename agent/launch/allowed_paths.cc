#include "agent/launch/allowed_paths.h"

#include <absl/strings/str_cat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/dot_dot.h"
#include "base/errno_status.h"

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

// `flag`: of the roots.
absl::Status CheckBelow(const SpecPath& at, const std::vector<PathRoot>& roots, const char* flag) {
  const absl::StatusOr<bool> below = LiesBelow(at.path, roots);
  const std::string object = absl::StrCat(at.field, ": '", at.path, "' ");
  if (!below.ok())
    return absl::UnavailableError(
        absl::StrCat(object, "cannot be opened on this node: ", below.status().message()));
  if (*below) return absl::OkStatus();
  if (HasDotDot(at.path))
    return absl::PermissionDeniedError(
        absl::StrCat(object, "is not opened on this node: it contains .., which is not supported with ", flag,
                     "; write the path without .."));
  std::error_code ignored;
  const std::string target = std::filesystem::weakly_canonical(at.path, ignored);
  const std::string leads = target == at.path ? "" : absl::StrCat("leads to ", target, ", which ");
  return absl::PermissionDeniedError(absl::StrCat(object, "is not opened on this node: it ", leads,
                                                  "is outside of ", flag, " ", NamesOf(roots)));
}

}  // namespace

std::vector<SpecPath> PathsOf(const v1::JobSpec& spec) {
  std::vector<SpecPath> paths;
  AddFiles("data.tokens", spec.data().tokens(), &paths);
  AddFiles("data.validation", spec.data().validation(), &paths);
  Add("checkpoint.dir", spec.checkpoint().dir(), &paths);
  Add("checkpoint.load", spec.checkpoint().load(), &paths);
  Add("train.lora.base_model", spec.train().lora().base_model(), &paths);
  return paths;
}

absl::Status CheckPaths(const v1::JobSpec& spec, const std::vector<PathRoot>& roots) {
  if (roots.empty()) return absl::OkStatus();
  for (const SpecPath& at : PathsOf(spec)) FSDPD_RETURN_IF_ERROR(CheckBelow(at, roots, "--path-root"));
  return absl::OkStatus();
}

absl::Status CheckPlugin(const v1::Model& model, const std::vector<PathRoot>& dirs) {
  SpecPath at{"model.plugin.path", model.plugin().path()};
  if (model.has_package()) at = {"model.package.path", model.package().path()};
  if (at.path.empty()) return absl::OkStatus();
  const std::string object = absl::StrCat(at.field, ": '", at.path, "' ");
  if (dirs.empty())
    return absl::PermissionDeniedError(object + "is not opened on this node: its agent has no --plugin-dir");
  FSDPD_RETURN_IF_ERROR(CheckBelow(at, dirs, "--plugin-dir"));
  if (access(at.path.c_str(), R_OK) == 0) return absl::OkStatus();
  return absl::UnavailableError(ErrnoText(object + "cannot be opened on this node") +
                                "; copy it to this path on every node");
}

}  // namespace fsdpd
