#include "client/spec/spec_file.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/check.h"
#include "base/dot_dot.h"
#include "base/limits.h"
#include "base/spec_text/renamed_fields.h"
#include "client/spec/spec_paths.h"
#include "fsdp/checkpoint/hf/hf_config.h"
#include "fsdp/package/package_file.h"

namespace fsdpd {
namespace {

// Reads one byte more than the limit, so that the parser reports a text that is too large.
std::string ReadBounded(std::istream& stream) {
  std::string text(kMaxJobSpecBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(stream.gcount()));
  return text;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return absl::NotFoundError(absl::StrCat(path, ": is a directory"));
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  std::string text = ReadBounded(stream);
  if (stream.bad()) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  return text;
}

void AddViolation(const char* rule, const char* field, absl::string_view reason, const char* fix,
                  SpecText* spec) {
  const Violation fault{rule, ViolationLevel::kError, field, std::string(reason), fix, "", ""};
  spec->violations.push_back(Locate(fault, spec->places));
}

// Marks the model as unparsed too, so that it is not validated.
void AddModelViolation(const char* rule, const char* field, absl::string_view reason, const char* fix,
                       SpecText* spec) {
  AddViolation(rule, field, reason, fix, spec);
  spec->unparsed.push_back("model");
}

void InlineHfConfig(const std::filesystem::path& directory, SpecText* spec) {
  if (!spec->spec.model().has_hf_config()) return;
  const std::string path = AbsolutePath(spec->spec.model().hf_config(), directory);
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) {
    AddModelViolation("hf_no_config", "model.hf_config", text.status().message(),
                      "give the path of a config.json on this machine", spec);
    return;
  }
  v1::Model model;
  FieldPlaces places;  // Later errors about the sizes are located in config.json.
  double initializer_range = kInitializerRange;
  const LocatedViolations violations = ReadHfConfig(*text, path, &model, &places, &initializer_range);
  spec->violations.insert(spec->violations.end(), violations.begin(), violations.end());
  if (HasErrors(violations)) {
    spec->unparsed.push_back("model");
    return;
  }
  if (initializer_range != kInitializerRange && !spec->spec.train().initial().has_std()) {
    spec->spec.mutable_train()->mutable_initial()->set_std(initializer_range);
  } else {
    places.erase("train.initial.std");
  }
  for (auto& [field, place] : places) spec->places[field] = std::move(place);
  *spec->spec.mutable_model() = std::move(model);
}

// Parses a description as part of a spec, so that it has the same syntax and errors. It starts on the second
// line of the parsed text, so line numbers are shifted by one.
SpecText ParseDescription(const std::string& text, const std::string& path) {
  SpecText described =
      ParseSpec(absl::StrCat("{model: {plugin:\n", WithCurrentFieldNames(text), "\n}}"), path);
  const auto shift = [](Place* place) { place->line = std::max(place->line - 1, 1); };
  for (LocatedViolation& fault : described.violations) shift(&fault.place);
  for (auto& [field, place] : described.places) shift(&place);
  return described;
}

void TakeDescription(const SpecText& described, SpecText* spec) {
  v1::Plugin* plugin = spec->spec.mutable_model()->mutable_plugin();
  v1::Plugin taken = described.spec.model().plugin();
  if (!plugin->args().empty() && plugin->args() != taken.args()) {
    AddModelViolation(
        "plugin_other_args", "model.plugin.args",
        absl::StrCat("the description was made with '", taken.args(), "'"),
        "remove args, or recreate the description with fsdpd-rank --describe-plugin PATH --args ARGS", spec);
    return;
  }
  taken.set_path(plugin->path());
  taken.clear_description();
  *plugin = std::move(taken);
  for (const auto& [field, place] : described.places) {
    // Later errors about the model are located in the description.
    if (absl::StartsWith(field, "model.plugin.")) spec->places.emplace(field, place);
  }
}

void InlineDescription(const std::filesystem::path& directory, SpecText* spec) {
  if (!spec->spec.model().has_plugin()) return;
  v1::Plugin* plugin = spec->spec.mutable_model()->mutable_plugin();
  if (plugin->description().empty()) return;
  if (plugin->units_size() > 0 || plugin->vocab_size() != 0 || plugin->max_sequence_length() != 0) {
    AddModelViolation("plugin_described_twice", "model.plugin.description",
                      "the spec has both a description file and the description itself", "remove one of them",
                      spec);
    return;
  }
  const std::string path = AbsolutePath(plugin->description(), directory);
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) {
    AddModelViolation("plugin_no_description", "model.plugin.description", text.status().message(),
                      "create the file with fsdpd-rank --describe-plugin PATH > FILE", spec);
    return;
  }
  const SpecText described = ParseDescription(*text, path);
  spec->violations.insert(spec->violations.end(), described.violations.begin(), described.violations.end());
  if (described.violations.empty()) {
    TakeDescription(described, spec);
  } else {
    spec->unparsed.push_back("model");
  }
}

// Fields of the package that the file has, too, as in a spec of `fsdpctl get -o yaml`, must be the same.
void InlinePackage(const std::filesystem::path& directory, SpecText* spec) {
  if (!spec->spec.model().has_package()) return;
  v1::Package* package = spec->spec.mutable_model()->mutable_package();
  const std::string path = AbsolutePath(package->path(), directory);
  if (path.empty() || NeedsExpansion(package->path())) return;
  absl::StatusOr<v1::PackageManifest> read = ReadPackage(path);
  if (absl::IsNotFound(read.status()))
    return;  // Nodes have it; the rules report that its fields are missing.
  if (!read.ok()) {
    AddModelViolation("package_unreadable", "model.package.path", read.status().message(),
                      "export the package again, or copy it again", spec);
    return;
  }
  v1::Package taken = std::move(*read->mutable_model());
  taken.set_path(package->path());
  v1::Package others = *package;
  others.clear_path();
  if (others.ByteSizeLong() > 0 && package->SerializeAsString() != taken.SerializeAsString()) {
    AddModelViolation("package_differs", "model.package",
                      absl::StrCat("the spec has other values than the package ", path),
                      "leave out all fields except path", spec);
    return;
  }
  *package = std::move(taken);
}

// Describes what is wrong with the file on this machine; "" if nothing is, or if its directory does not exist
// here.
std::string FaultOfFile(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path directory = path.parent_path();
  if (directory == directory.root_path() || !std::filesystem::is_directory(directory, error)) return "";
  const bool there = std::filesystem::exists(path, error);
  if (error) return absl::StrCat("cannot be read here: ", error.message());
  if (!there) return "does not exist on this machine, although its directory does";
  if (std::filesystem::is_directory(path, error)) return "is a directory";
  if (access(path.c_str(), R_OK) != 0) return absl::StrCat("cannot be read here: ", std::strerror(errno));
  if (std::filesystem::file_size(path, error) == 0 && !error) return "is empty";
  return "";
}

void WarnOfFile(const std::string& field, const std::string& path, SpecText* spec) {
  if (path.empty() || path[0] != '/' || HasDotDot(path)) return;  // Validation rejects `..`.
  const std::string reason = FaultOfFile(path);
  if (reason.empty()) return;
  const Violation fault{"token_file_here",
                        ViolationLevel::kWarn,
                        field,
                        absl::StrCat(path, " ", reason),
                        "fix it, or ignore this if the nodes have a different file there",
                        "",
                        ""};
  spec->violations.push_back(Locate(fault, spec->places));
}

void WarnOfFiles(const std::string& list, const google::protobuf::RepeatedPtrField<v1::TokenFile>& files,
                 SpecText* spec) {
  for (int i = 0; i < files.size(); ++i) {
    const std::string file = absl::StrCat(list, "[", i, "]");
    const bool megatron = files[i].type() == v1::TOKEN_TYPE_MEGATRON;
    for (const char* ending :
         megatron ? std::vector<const char*>{".bin", ".idx"} : std::vector<const char*>{""})
      WarnOfFile(file + ".path", absl::StrCat(files[i].path(), ending), spec);
    WarnOfFile(file + ".mask", files[i].mask(), spec);
  }
}

}  // namespace

absl::StatusOr<std::string> ReadText(const std::string& path, std::istream& input) {
  if (path == "-") return ReadBounded(input);
  return ReadFile(path);
}

absl::StatusOr<SpecText> LoadSpec(const std::string& path, const std::vector<std::string>& sets,
                                  std::istream& input) {
  FSDPD_ASSIGN_OR_RETURN(const std::string text, ReadText(path, input));
  SpecText spec = ParseSpec(text, path == "-" ? "<stdin>" : path, sets);
  if (!spec.is_tree) return spec;
  const std::filesystem::path directory = SpecDirectory(path);
  InlineHfConfig(directory, &spec);
  InlineDescription(directory, &spec);
  InlinePackage(directory, &spec);
  for (const RelativePath& of : MakePathsAbsolute(directory, &spec.spec)) {
    if (!NeedsExpansion(of.written)) continue;
    AddViolation("path_of_node", of.field.c_str(),
                 absl::StrCat("'", of.written, "' is not a path on the nodes"),
                 "write the absolute path on the nodes, /...", &spec);
  }
  if (!spec.spec.has_data()) return spec;
  const v1::Data& data = spec.spec.data();
  WarnOfFiles("data.tokens", data.tokens(), &spec);
  WarnOfFiles("data.validation", data.validation(), &spec);
  return spec;
}

}  // namespace fsdpd
