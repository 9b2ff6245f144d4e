#include "client/spec/spec_paths.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <system_error>
#include <utility>

#include "base/dot_dot.h"

namespace fsdpd {
namespace {

class PathMaker {
 public:
  explicit PathMaker(const std::filesystem::path& directory) : directory_(directory) {}

  // Directories get no trailing slash, so that equal directories have equal paths.
  std::string ToAbsolute(const std::string& field, const std::string& path, bool is_directory = false) {
    std::string absolute = AbsolutePath(path, directory_);
    if (is_directory && absolute.size() > 1 && absolute.back() == '/') absolute.pop_back();
    if (!path.empty()) fields.push_back(field);
    if (!path.empty() && path[0] != '/') relative.push_back({field, path, absolute});
    return absolute;
  }

  void Files(const std::string& list, google::protobuf::RepeatedPtrField<v1::TokenFile>* files) {
    for (int i = 0; i < files->size(); ++i) {
      v1::TokenFile& file = (*files)[i];
      const std::string field = absl::StrCat(list, "[", i, "]");
      file.set_path(ToAbsolute(field + ".path", file.path()));
      file.set_mask(ToAbsolute(field + ".mask", file.mask()));
    }
  }

  void All(v1::JobSpec* spec) {
    if (spec->model().has_plugin()) {
      v1::Plugin* plugin = spec->mutable_model()->mutable_plugin();
      plugin->set_path(ToAbsolute("model.plugin.path", plugin->path()));
    }
    if (spec->model().has_package()) {
      v1::Package* package = spec->mutable_model()->mutable_package();
      package->set_path(ToAbsolute("model.package.path", package->path()));
    }
    if (spec->has_checkpoint()) {
      v1::Checkpoint* checkpoint = spec->mutable_checkpoint();
      checkpoint->set_dir(ToAbsolute("checkpoint.dir", checkpoint->dir(), /*is_directory=*/true));
      checkpoint->set_load(ToAbsolute("checkpoint.load", checkpoint->load(), /*is_directory=*/true));
    }
    if (spec->train().has_lora()) {
      v1::Lora* lora = spec->mutable_train()->mutable_lora();
      lora->set_base_model(ToAbsolute("train.lora.base_model", lora->base_model(), /*is_directory=*/true));
    }
    if (spec->has_data()) {
      Files("data.tokens", spec->mutable_data()->mutable_tokens());
      Files("data.validation", spec->mutable_data()->mutable_validation());
    }
  }

  std::vector<std::string> fields;  // All fields that have a path.
  std::vector<RelativePath> relative;

 private:
  const std::filesystem::path& directory_;
};

}  // namespace

std::filesystem::path SpecDirectory(const std::string& file) {
  std::error_code ignored;
  if (file == "-") return std::filesystem::current_path(ignored);
  return std::filesystem::absolute(file, ignored).parent_path();
}

bool NeedsExpansion(const std::string& path) {
  return absl::StartsWith(path, "~") || absl::StrContains(path, "://");
}

std::string AbsolutePath(const std::string& path, const std::filesystem::path& directory) {
  if (path.empty()) return path;
  const std::filesystem::path absolute = std::filesystem::absolute(directory / path);
  return HasDotDot(path) ? absolute.string() : absolute.lexically_normal().string();
}

std::vector<std::string> NodePathFields(v1::JobSpec spec) {
  const std::filesystem::path root = "/";
  PathMaker maker(root);
  maker.All(&spec);
  return std::move(maker.fields);
}

std::vector<RelativePath> MakePathsAbsolute(const std::filesystem::path& directory, v1::JobSpec* spec) {
  PathMaker maker(directory);
  maker.All(spec);
  return std::move(maker.relative);
}

}  // namespace fsdpd
