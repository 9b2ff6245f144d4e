#include "fsdp/model/plugin.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <dlfcn.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>

#include <utility>

#include "base/check.h"
#include "fsdp/model/plugin_entry.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

absl::Status In(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("plug-in ", path, ": ", status.message()));
}

absl::Status Unusable(const std::string& path, const std::string& reason) {
  return In(path, absl::FailedPreconditionError(reason));
}

absl::Status CheckVersions(const PluginEntry& entry) {
  if (entry.abi != kPluginAbi) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "plug-in interface does not match (got %d, want %d); rebuild the plug-in", entry.abi, kPluginAbi));
  }
  if (entry.version != absl::string_view(kVersion)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "fsdpd version does not match (got %s, want %s); rebuild the plug-in", entry.version, kVersion));
  }
  if (entry.torch_version != absl::string_view(TORCH_VERSION)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("LibTorch version does not match (got %s, want %s); rebuild the plug-in",
                        entry.torch_version, TORCH_VERSION));
  }
  return absl::OkStatus();
}

absl::StatusOr<const PluginEntry*> EntryOf(const std::string& path) {
  // RTLD_NOW: a missing symbol is an error here; with lazy binding it would end the process at its first
  // call.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return In(path, absl::NotFoundError(dlerror()));
  void* symbol = dlsym(library, kPluginSymbol);
  if (symbol == nullptr) {
    return Unusable(path, absl::StrCat("exports no ", kPluginSymbol, "(): end its source with FSDPD_PLUGIN"));
  }
  const PluginEntry* entry = reinterpret_cast<const PluginEntry* (*)()>(symbol)();
  const absl::Status versions = CheckVersions(*entry);
  if (!versions.ok()) return In(path, versions);
  return entry;
}

absl::StatusOr<ModelDescription> DescriptionOf(const UserModel& model, const std::string& path) {
  ModelDescription description;
  const absl::Status status = CatchTorch([&] {
    description = model.Describe();
    return absl::OkStatus();
  });
  if (!status.ok()) return In(path, status);
  return description;
}

// Returns the first difference, such as "modified: units[1].params[0].shape[0]: 64 -> 32", or an empty
// string.
std::string FirstDifference(const ModelDescription& spec, const ModelDescription& actual) {
  google::protobuf::util::MessageDifferencer differencer;
  std::string differences;
  differencer.ReportDifferencesToString(&differences);
  if (differencer.Compare(ToProto(spec), ToProto(actual))) return "";
  return differences.substr(0, differences.find('\n'));
}

}  // namespace

absl::StatusOr<std::unique_ptr<UserModel>> LoadPlugin(const std::string& path, const std::string& args) {
  FSDPD_ASSIGN_OR_RETURN(const PluginEntry* entry, EntryOf(path));
  std::unique_ptr<UserModel> model;
  const absl::Status status = CatchTorch([&] {
    model.reset(entry->make(args));
    return absl::OkStatus();
  });
  if (!status.ok()) return In(path, status);
  if (model == nullptr) return Unusable(path, "factory returned null");
  return model;
}

absl::StatusOr<std::string> DescribePlugin(const std::string& path, const std::string& args) {
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<UserModel> model, LoadPlugin(path, args));
  FSDPD_ASSIGN_OR_RETURN(const ModelDescription description, DescriptionOf(*model, path));
  v1::Plugin message = ToProto(description);
  message.set_args(args);
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto printed = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!printed.ok()) return In(path, absl::InternalError(printed.ToString()));
  return json;
}

absl::StatusOr<std::vector<std::unique_ptr<Unit>>> MakePluginUnits(const PluginConfig& config,
                                                                   const ModelFacts& facts,
                                                                   at::Device device) {
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<UserModel> model, LoadPlugin(config.path, config.args));
  FSDPD_ASSIGN_OR_RETURN(const ModelDescription actual, DescriptionOf(*model, config.path));
  const std::string difference = FirstDifference(config, actual);
  if (!difference.empty()) {
    return Unusable(config.path, absl::StrCat("describes another model than the job's spec (spec -> file): ",
                                              difference, "; regenerate the description"));
  }
  auto units = MakeUserUnits(*model, facts, device);
  if (!units.ok()) return In(config.path, units.status());
  return units;
}

}  // namespace fsdpd
